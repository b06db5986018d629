"""The dashboard is one that Cloud Monitoring takes, and shows only what the exporter sends."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_goodput_measurement._export.gauges import gauges_of

from .snapshots import snapshot

SOURCE = files("ml_goodput_measurement") / "dashboards" / "goodput_dashboard.json"
RESOURCE = "compute.googleapis.com/Workload"
RESOURCE_LABELS = {"location", "workload_id", "replica_id"}
# https://prometheus.io/docs/prometheus/latest/querying/operators/
WORDS = {"by", "on", "group_left", "max", "sum", "topk", "delta"}


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(SOURCE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def emitted() -> Any:
    """Return the label values of each series of a metric, by the metric's name in PromQL."""
    gauges = gauges_of(
        snapshot(),
        accelerator_type="TPU-v5p",
        cluster_name="c",
        own_events={"EVAL"},
        include_slice_efficiency=True,
    )
    found: dict[Any, Any] = {}
    for gauge in gauges:
        domain, _, path = gauge.metric_type.partition("/")
        name = f"{re.sub(r'[^a-zA-Z0-9]', '_', domain)}:{re.sub(r'[^a-zA-Z0-9]', '_', path)}"
        found.setdefault(name, []).append(dict(gauge.labels))
    return found


def tiles(dashboard: Any) -> Any:
    return dashboard["mosaicLayout"]["tiles"]


def queries(dashboard: Any) -> Iterator[Any]:
    """Every query, with the title of its tile."""
    for tile in tiles(dashboard):
        widget = tile["widget"]
        for kind in ("xyChart", "timeSeriesTable", "scorecard"):
            for data_set in widget.get(kind, {}).get("dataSets", []):
                yield widget["title"], data_set["timeSeriesQuery"]["prometheusQuery"]


def selectors(query: Any) -> Iterator[Any]:
    """Every metric of a query, with its label matchers as (name, operator, value)."""
    for name, matchers in re.findall(r"([a-z_]+:[a-z_]+)\{([^}]*)\}", query):
        yield name, re.findall(r'(\w+)(=~|=|!~|!=)"([^"]*)"', matchers)


def test_every_chart_asks_for_something(dashboard: Any) -> None:
    titles = [title for title, _ in queries(dashboard)]
    charts = [tile for tile in tiles(dashboard) if not {"text", "sectionHeader"} & set(tile["widget"])]
    assert len(titles) == len(charts) > 10
    assert len(set(titles)) == len(titles)


def test_every_metric_that_it_names_is_sent(dashboard: Any, emitted: Any) -> None:
    for title, query in queries(dashboard):
        named = set(re.findall(r"[a-z_]+:[a-z_]+", query))
        assert named
        assert named <= set(emitted), title
        assert named == {name for name, _ in selectors(query)}, title


def test_it_shows_every_metric_that_is_sent(dashboard: Any, emitted: Any) -> None:
    assert {name for _, query in queries(dashboard) for name, _ in selectors(query)} == set(emitted)


def test_every_label_that_it_names_is_sent_and_has_such_values(dashboard: Any, emitted: Any) -> None:
    for title, query in queries(dashboard):
        for name, matchers in selectors(query):
            for label, operator, value in matchers:
                if label == "monitored_resource":
                    assert (operator, value) == ("=", RESOURCE), title
                    continue
                values = {labels[label] for labels in emitted[name]}
                wanted = value.split("|") if operator == "=~" else [value]
                assert set(wanted) <= values, (title, label)
        common = set.intersection(*(set(emitted[name][0]) for name, _ in selectors(query))) | RESOURCE_LABELS
        for grouping in re.findall(r"\bby \(([^)]*)\)", query):
            inner = query[query.index(f"by ({grouping})") :]
            first = next(selectors(inner))[0]
            assert set(grouping.split(", ")) <= set(emitted[first][0]) | RESOURCE_LABELS, title
        assert set(re.findall(r"\bon \(([^)]*)\)", query)) <= common, title


def test_every_query_distinguishes_workloads_and_names_their_resource(dashboard: Any) -> None:
    for title, query in queries(dashboard):
        for grouping in re.findall(r"\bby \(([^)]*)\)", query):
            assert "workload_id" in grouping.split(", "), title
        for _, matchers in selectors(query):
            assert ("monitored_resource", "=", RESOURCE) in matchers, title
    assert {chosen["labelKey"] for chosen in dashboard["dashboardFilters"]} <= RESOURCE_LABELS


def test_every_query_is_well_formed(dashboard: Any) -> None:
    for title, query in queries(dashboard):
        bare = re.sub(r'"[^"]*"', "", query)
        for opened, closed in ("()", "{}", "[]"):
            assert bare.count(opened) == bare.count(closed), title
        rest = re.sub(r"\{[^}]*\}|\[[^]]*\]|[a-z_]+:[a-z_]+|\((?:\w+(?:, )?)+\)", "", bare)
        assert set(re.findall(r"[a-z_]+", rest)) <= WORDS, title


def test_no_tile_lies_on_another_or_over_the_edge(dashboard: Any) -> None:
    taken: dict[Any, Any] = {}
    columns = dashboard["mosaicLayout"]["columns"]
    for tile in tiles(dashboard):
        left, top = tile.get("xPos", 0), tile.get("yPos", 0)
        assert tile["width"] > 0
        assert left + tile["width"] <= columns
        for x in range(left, left + tile["width"]):
            for y in range(top, top + tile["height"]):
                assert taken.setdefault((x, y), tile) is tile, tile["widget"]
    rows = {y for _, y in taken}
    assert rows == set(range(max(rows) + 1))  # No row is empty.


def test_it_is_a_dashboard_of_the_api(dashboard: Any) -> None:
    api = pytest.importorskip("google.cloud.monitoring_dashboard_v1")
    from google.protobuf import json_format  # type: ignore[import-untyped]

    read = json_format.ParseDict(dashboard, api.Dashboard.pb()())
    assert len(read.mosaic_layout.tiles) == len(tiles(dashboard))
    assert read.display_name


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_installs_it(cloud_monitoring_server: CloudMonitoringServer, dashboard: Any, tmp_path: Path) -> None:
    environ = {**os.environ, **cloud_monitoring_server.environment(), "CLOUDSDK_CONFIG": str(tmp_path)}
    command = ["gcloud", "monitoring", "dashboards", "create", f"--config-from-file={SOURCE}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (made,) = cloud_monitoring_server.dashboards
    assert made["displayName"] == dashboard["displayName"]
    # gcloud leaves out what is empty.
    assert [tile["widget"] for tile in tiles(made)] == [tile["widget"] for tile in tiles(dashboard)]
