"""The filters of the Terraform files match our entries alone, and the dashboards show only existing metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics.entries import DUMP, HANG_SUSPECTED, JOB_ENDED, LOG_ID, SNAPSHOT, entry
from ml_diagnostics_testing.cloud_logging._entries import make_entry
from ml_diagnostics_testing.cloud_logging._filters import compile_filter

from .terraform_plan import InvalidVariableError, plan, settings

TERRAFORM = Path(__file__).resolve().parents[2] / "deploy" / "terraform"
PROJECT = "a-project"
PLATFORMS = ["gce", "gke"]

TPU_WORKER = {
    "type": "tpu_worker",
    "labels": {"project_id": PROJECT, "zone": "us-central2-b", "node_id": "train-7", "worker_id": "3"},
}
POD = "train-slice-job-0-3-xk2p9"


def container(name: Any) -> Any:
    labels = {
        "project_id": PROJECT,
        "location": "us-central2",
        "cluster_name": "big",
        "namespace_name": "default",
        "pod_name": POD,
        "container_name": name,
    }
    return {"type": "k8s_container", "labels": labels}


OWN_RESOURCE = {"gce": TPU_WORKER, "gke": container("trainer")}
COUNTED_AS = {
    "gce": {"zone": "us-central2-b", "node_id": "train-7", "worker_id": "3"},
    "gke": {"location": "us-central2", "cluster": "big", "pod": POD, "job_name": "train-slice-job-0"},
}

# Types of metrics, the monitored resource of each and its labels besides the resource's. Sources:
# https://cloud.google.com/monitoring/api/metrics_gcp_p_z#gcp-tpu (those of `tpu_worker`, also listed by
# https://cloud.google.com/tpu/docs/troubleshooting/dashboards), https://cloud.google.com/monitoring/api/metrics_kubernetes
GOOGLE_METRICS = {
    "tpu.googleapis.com/cpu/utilization": "tpu_worker",
    "tpu.googleapis.com/memory/usage": "tpu_worker",
    "tpu.googleapis.com/network/received_bytes_count": "tpu_worker",
    "tpu.googleapis.com/network/sent_bytes_count": "tpu_worker",
    "tpu.googleapis.com/tpu/tensorcore/idle_duration": "tpu_worker",
    "kubernetes.io/container/accelerator/duty_cycle": "k8s_container",
    "kubernetes.io/container/accelerator/memory_used": "k8s_container",
    "kubernetes.io/container/cpu/core_usage_time": "k8s_container",
    "kubernetes.io/container/memory/used_bytes": "k8s_container",
    "kubernetes.io/pod/network/received_bytes_count": "k8s_pod",
    "kubernetes.io/pod/network/sent_bytes_count": "k8s_pod",
    "kubernetes.io/container/multislice/accelerator/device_to_host_transfer_latencies": "k8s_container",
    "kubernetes.io/container/multislice/accelerator/host_to_device_transfer_latencies": "k8s_container",
    "kubernetes.io/container/multislice/network/collective_end_to_end_latencies": "k8s_container",
    "kubernetes.io/container/multislice/network/dcn_transfer_latencies": "k8s_container",
}
# A program's own, which the dashboards of the public package show: of any resource, and there only if it writes them.
CUSTOM_METRICS = {
    "custom.googleapis.com/d2h_transfer_latency",
    "custom.googleapis.com/dcn_transfer_latency",
    "custom.googleapis.com/h2d_transfer_latency",
}
DISTRIBUTIONS = {name for name in [*GOOGLE_METRICS, *CUSTOM_METRICS] if name.endswith(("_latencies", "_latency"))}
# DELTA and CUMULATIVE ones, which mean something only as a rate.
COUNTERS = {name for name in GOOGLE_METRICS if name.endswith(("_count", "_time"))}

# https://cloud.google.com/monitoring/api/resources
RESOURCE_LABELS = {
    "tpu_worker": {"project_id", "zone", "node_id", "worker_id"},
    "k8s_container": {"project_id", "location", "cluster_name", "namespace_name", "pod_name", "container_name"},
    "k8s_pod": {"project_id", "location", "cluster_name", "namespace_name", "pod_name"},
    "gce_instance": {"project_id", "instance_id", "zone"},
}


def planned(platform: Any, **variables: Any) -> Any:
    return plan(TERRAFORM / platform, project_name=PROJECT, **variables)


def counter(platform: Any) -> Any:
    return planned(platform).resources["google_logging_metric"]["stack_trace_counter"]


def log_filter(platform: Any) -> Any:
    """Return the filter of the log bucket and the dashboard."""
    found = planned(platform, stack_trace_bucket_config={"bucket_name": "traces"})
    return found.resources["google_logging_project_sink"]["stack_traces"][0]["filter"]


def dashboard(platform: Any, name: Any, **variables: Any) -> Any:
    found = planned(platform, **variables).resources["google_monitoring_dashboard"][name]
    return json.loads(found["dashboard_json"])


def tiles(dashboard: Any) -> Any:
    return dashboard["mosaicLayout"]["tiles"]


def queries(dashboard: Any) -> Iterator[Any]:
    """Yield every PromQL query, with the title of its tile."""
    for tile in tiles(dashboard):
        for kind in ("xyChart", "timeSeriesTable"):
            for data_set in tile["widget"].get(kind, {}).get("dataSets", []):
                yield tile["widget"]["title"], data_set["timeSeriesQuery"]["prometheusQuery"]


def selectors(query: Any) -> Iterator[Any]:
    """Yield every metric of a query with its label matchers."""
    for name, matchers in re.findall(r"(\w+:\w+)(\{[^}]*\})?", query):
        yield name, {label: value for label, _, value in re.findall(r"(\w+)(=~|=)'([^']*)'", matchers)}


def in_promql(metric_type: Any) -> Any:
    """Return the name in PromQL: https://cloud.google.com/monitoring/promql/promql-mapping."""
    domain, _, path = metric_type.partition("/")
    suffix = "_bucket" if metric_type in DISTRIBUTIONS else ""
    return f"{re.sub(r'[^a-zA-Z0-9]', '_', domain)}:{re.sub(r'[^a-zA-Z0-9]', '_', path)}{suffix}"


def stored(resource: Any, payload: Any, log_id: Any = LOG_ID) -> Any:
    """Return an entry as Cloud Logging stores it."""
    body = {"textPayload": payload} if isinstance(payload, str) else {"jsonPayload": payload}
    name = f"projects/{PROJECT}/logs/{log_id.replace('/', '%2F')}"
    return make_entry({"logName": name, "resource": resource, **body}, {}, 1, "an-id")


def extracted(expression: Any, found: Any) -> Any:
    """Extract a label: https://cloud.google.com/logging/docs/reference/v2/rest/v2/projects.metrics, value_extractor."""
    function, path, pattern = re.fullmatch(r'(EXTRACT|REGEXP_EXTRACT)\(([\w.]+)(?:, "(.*)")?\)', expression).groups()
    value = found.fields
    for name in path.split("."):
        value = value[name]
    assert (function == "REGEXP_EXTRACT") == (pattern is not None)
    if pattern is None:
        return value
    match = re.search(pattern, value)
    return match[1] if match else ""


# --- Log entries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("kind", [DUMP, SNAPSHOT, HANG_SUSPECTED, JOB_ENDED])
def test_the_filter_matches_every_kind_of_our_entries(platform: Any, kind: Any) -> None:
    matches = compile_filter(log_filter(platform)).matches
    assert matches(stored(OWN_RESOURCE[platform], entry(kind, "what happened")))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_counter_counts_each_dump_once_and_nothing_else(platform: Any) -> None:
    matches = compile_filter(counter(platform)["filter"]).matches
    parts = [entry(DUMP, "a part", part=part, parts=3) for part in (1, 2, 3)]
    agents = {"verb": "stacktraceanalyzer", "message": "a line that TPU VMs' agent found in /tmp/debugging"}
    others = [entry(kind, "what happened") for kind in (SNAPSHOT, HANG_SUSPECTED, JOB_ENDED)]
    counted = [payload for payload in (*parts, agents, *others) if matches(stored(OWN_RESOURCE[platform], payload))]
    assert counted == [parts[0], agents]
    assert matches(stored(OWN_RESOURCE[platform], entry(DUMP, "a whole trace")))
    assert platform == "gce" or matches(stored(container("stacktrace"), "a line", log_id="stdout"))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_filter_matches_no_other_entry(platform: Any) -> None:
    matches = compile_filter(log_filter(platform)).matches
    own, ours = OWN_RESOURCE[platform], entry(DUMP, "a trace")
    assert matches(stored(own, ours))
    others = [
        stored({"type": "global", "labels": {"project_id": PROJECT}}, ours),
        stored({**own, "type": "gce_instance"}, ours),
        stored(own, ours, log_id="stdout"),
        stored(own, {**ours, "verb": "anotherverb"}),
        stored(own, "a line of text"),
        stored(own, {"message": "stacktraceanalyzer"}, log_id="goodput_train"),
    ]
    assert [matches(other) for other in others] == [False] * len(others)


@pytest.mark.parametrize("name", ["stacktrace", "stacktrace-explorer", "my-stacktrace2", "ml-diagnostics-stacktrace"])
def test_on_gke_the_filter_matches_the_lines_of_a_sidecar(name: str) -> None:
    matches = compile_filter(log_filter("gke")).matches
    line = 'File "train.py", line 4 in step'
    assert matches(stored(container(name), line, log_id="stdout"))
    assert not matches(stored({**container(name), "type": "k8s_pod"}, line, log_id="stdout"))
    assert not matches(stored(container("trainer"), line, log_id="stdout"))


def test_the_filter_on_gce_is_the_documented_one() -> None:
    assert log_filter("gce") == (
        'resource.type="tpu_worker" log_id("tpu.googleapis.com/runtime_monitor") jsonPayload.verb="stacktraceanalyzer"'
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_counter_counts_entries_under_the_documented_name_and_labels(platform: Any) -> None:
    found = counter(platform)
    (descriptor,) = found["metric_descriptor"]
    assert found["name"] == f"stack_trace_counter_{platform}"
    assert (descriptor["metric_kind"], descriptor["value_type"]) == ("DELTA", "INT64")
    assert (
        {label["key"] for label in descriptor["labels"]} == set(found["label_extractors"]) == set(COUNTED_AS[platform])
    )
    assert {label["value_type"] for label in descriptor["labels"]} == {"STRING"}
    assert planned(platform).outputs["counter_metric_type"] == f"logging.googleapis.com/user/{found['name']}"


@pytest.mark.parametrize(
    ("platform", "found"),
    [
        ("gce", stored(TPU_WORKER, entry(DUMP, "a trace"))),
        ("gke", stored(container("trainer"), entry(DUMP, "a trace"))),
        ("gke", stored(container("stacktrace"), "a line", log_id="stdout")),
    ],
)
def test_the_labels_of_the_counter_are_in_the_entries(platform: Any, found: Any) -> None:
    extractors = counter(platform)["label_extractors"]
    assert {name: extracted(how, found) for name, how in extractors.items()} == COUNTED_AS[platform]


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("train-7f9xk", "train"),
        ("train-0-7f9xk", "train"),
        ("train-big-slice-1-12-7f9xk", "train-big-slice-1"),
        ("train-slice-0-3", "train-slice-0"),
        ("notebook", "notebook"),
    ],
)
def test_the_job_follows_from_the_names_that_kubernetes_gives_its_pods_and_their_hosts(pod: str, job: str) -> None:
    resource = container("trainer")
    resource["labels"]["pod_name"] = pod
    how = counter("gke")["label_extractors"]["job_name"]
    assert extracted(how, stored(resource, entry(DUMP, "a trace"))) == job


# --- The log bucket -----------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_bucket_is_made_unless_it_has_a_name(platform: Any) -> None:
    for config in ({}, {"bucket_name": None, "retention_days": None}, {"bucket_name": ""}):
        found = planned(platform, stack_trace_bucket_config=config)
        assert found.resources["google_logging_project_bucket_config"]["stack_traces"] == []
        assert found.resources["google_logging_project_sink"]["stack_traces"] == []
        assert found.outputs["log_bucket"] is None
        assert found.outputs["log_sink"] is None


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_bucket_keeps_traces_for_30_days_by_default(platform: Any) -> None:
    for config, days in (({"bucket_name": "traces"}, 30), ({"bucket_name": "traces", "retention_days": 7}, 7)):
        found = planned(platform, stack_trace_bucket_config=config).resources
        (bucket,) = found["google_logging_project_bucket_config"]["stack_traces"]
        assert (bucket["bucket_id"], bucket["retention_days"]) == ("traces", days)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_sink_routes_the_counted_entries_to_the_bucket(platform: Any) -> None:
    found = planned(platform, stack_trace_bucket_config={"bucket_name": "traces"})
    (sink,) = found.resources["google_logging_project_sink"]["stack_traces"]
    assert sink["name"] == found.outputs["log_sink"] == "traces_sink"
    assert counter(platform)["filter"].startswith(f"{sink['filter']} AND NOT ")
    assert sink["destination"] == f"logging.googleapis.com/{found.outputs['log_bucket']}"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_role_is_granted_because_a_sink_within_a_project_has_no_identity(platform: Any) -> None:
    """https://cloud.google.com/logging/docs/reference/v2/rest/v2/projects.sinks: writerIdentity."""
    found = planned(platform, stack_trace_bucket_config={"bucket_name": "traces"}).resources
    (sink,) = found["google_logging_project_sink"]["stack_traces"]
    assert sink["destination"].startswith(f"logging.googleapis.com/projects/{sink['project']}/")
    assert not [name for name in found if "iam" in name]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "config", [{"retention_days": 7}, {"retention_days": 30}, {"bucket_name": "", "retention_days": 7}]
)
def test_a_retention_without_a_bucket_is_an_error(platform: Any, config: Any) -> None:
    with pytest.raises(InvalidVariableError, match=r"^bucket_name is not defined for stack_trace_bucket_config\.$"):
        planned(platform, stack_trace_bucket_config=config)


# --- The other variables ------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
def test_only_the_project_must_be_given(platform: Any) -> None:
    with pytest.raises(InvalidVariableError, match="project_name"):
        plan(TERRAFORM / platform)
    found = planned(platform)
    assert {kind for kind, named in found.resources.items() if any(named.values())} == {
        "google_logging_metric",
        "google_monitoring_dashboard",
    }
    assert set(found.resources["google_monitoring_dashboard"]) == {"monitoring", "logging"}
    everything = [item for named in found.resources.values() for item in named.values() if item]
    assert {item["project"] for item in everything} == {PROJECT}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_ten_outliers_are_shown_by_default(platform: Any) -> None:
    for config, count in (({}, 10), ({"outlier_count": 3}, 3)):
        shown = dashboard(platform, "monitoring", monitoring_dashboard_config=config)
        found = {int(number) for _, query in queries(shown) for number in re.findall(r"topk\((\d+),", query)}
        assert found == {count}
    with pytest.raises(InvalidVariableError, match="outlier_count"):
        planned(platform, monitoring_dashboard_config={"outlier_count": 0})


def test_a_node_prefix_selects_nodes_on_gce() -> None:
    def chosen(config: Any) -> Any:
        shown = dashboard("gce", "monitoring", monitoring_dashboard_config=config)
        found = [labels for _, query in queries(shown) for _, labels in selectors(query)]
        return {labels["node_id"] for labels in found if "monitored_resource" in labels}

    (everything,), (some,) = chosen({}), chosen({"node_prefix": "train-"})
    assert re.fullmatch(everything, "any-node")
    assert re.fullmatch(some, "train-7")  # PromQL's patterns are of the whole value.
    assert not re.fullmatch(some, "my-train-7")
    with pytest.raises(InvalidVariableError, match="node_prefix"):
        planned("gce", monitoring_dashboard_config={"node_prefix": "x'} or y{z='"})


@pytest.mark.parametrize("folder", [*PLATFORMS, "modules/stack_traces"])
def test_versions_are_pinned_to_what_the_files_need(folder: Any) -> None:
    found = settings(TERRAFORM / folder)
    assert found["required_version"] == ">= 1.3"
    assert found["required_providers"] == [{"google": {"source": "hashicorp/google", "version": ">= 5.0, < 8.0"}}]


# --- Dashboards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_metric_that_is_shown_is_a_real_one_and_of_its_resource(platform: Any) -> None:
    real = {in_promql(name): resource for name, resource in GOOGLE_METRICS.items()}
    custom = {in_promql(name) for name in CUSTOM_METRICS}
    counted = f"logging_googleapis_com:user_{counter(platform)['name']}"
    real[counted] = OWN_RESOURCE[platform]["type"]
    shown = set()
    for name in ("monitoring", "logging"):
        for title, query in queries(dashboard(platform, name)):
            assert list(selectors(query)), title
            for metric, labels in selectors(query):
                shown.add(metric)
                if metric in custom:
                    assert labels == {}, title
                else:
                    assert labels["monitored_resource"] == real[metric], title
                    assert set(labels) - {"monitored_resource"} <= RESOURCE_LABELS[real[metric]], title
    own = {name for name, resource in real.items() if resource.startswith("k8s") == (platform == "gke")}
    assert shown == (own | custom if platform == "gce" else own)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_label_that_a_query_groups_by_exists(platform: Any) -> None:
    counted = set(COUNTED_AS[platform])
    for name in ("monitoring", "logging"):
        for title, query in queries(dashboard(platform, name)):
            resources = {labels.get("monitored_resource") for _, labels in selectors(query)}
            known = set().union(*(RESOURCE_LABELS[found] for found in resources if found)) or {
                *RESOURCE_LABELS["tpu_worker"],
                *RESOURCE_LABELS["gce_instance"],
            }
            kept = {label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(", ")}
            assert kept - {"le"} <= (counted if name == "logging" else known), title
            assert ("le" in kept) == ("histogram_quantile" in query), title


@pytest.mark.parametrize("platform", PLATFORMS)
def test_counters_are_shown_as_rates_and_distributions_as_quantiles(platform: Any) -> None:
    counters, distributions = set(map(in_promql, COUNTERS)), set(map(in_promql, DISTRIBUTIONS))
    for title, query in queries(dashboard(platform, "monitoring")):
        for name, _ in selectors(query):
            around = re.findall(rf"(\w+)\({name}(?:\{{[^}}]*\}})?(\[\w+\])?\)", query)
            if name in counters:
                assert set(around) == {("rate", "[5m]")}, title
            elif name in distributions:
                assert set(around) == {("increase", "[5m]")}, title
                assert "histogram_quantile(" in query, title
            else:
                assert "[" not in query, title


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_measure_has_its_stats_its_outliers_and_its_top_table(platform: Any) -> None:
    titles = [tile["widget"]["title"] for tile in tiles(dashboard(platform, "monitoring"))]
    assert len(set(titles)) == len(titles)
    measures = list(dict.fromkeys(title.partition(": ")[0] for title in titles))
    suffixes = ["Stats", "Outliers", "Outliers, TOP 10 by distance from the mean"]
    assert titles == [f"{measure}: {suffix}" for measure in measures for suffix in suffixes]
    latencies = [measure for measure in measures if "latency" in measure]
    assert {measure[-6:] for measure in latencies} == {" [p50]", " [p99]"}
    for title, query in queries(dashboard(platform, "monitoring")):
        quantiles = set(re.findall(r"histogram_quantile\(([\d.]+),", query))
        assert quantiles == ({"0.5"} if "[p50]" in title else {"0.99"} if "[p99]" in title else set()), title


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_query_is_well_formed(platform: Any) -> None:
    words = {"abs", "and", "avg", "by", "histogram_quantile", "increase", "max", "min", "rate", "scalar", "sum", "topk"}
    for name in ("monitoring", "logging"):
        for title, query in queries(dashboard(platform, name)):
            assert '"' not in query, title
            assert "${" not in query, title
            bare = re.sub(r"'[^']*'", "", query)
            for opened, closed in ("()", "{}", "[]"):
                assert bare.count(opened) == bare.count(closed), title
            rest = re.sub(r"\{[^}]*\}|\[[^]]*\]|\w+:\w+|\bby \([^)]*\)", "", bare)
            assert set(re.findall(r"[a-z_]+", rest)) <= words, title


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_logging_dashboard_counts_ten_minutes_and_shows_the_entries(platform: Any) -> None:
    counts, logs = (tile["widget"] for tile in tiles(dashboard(platform, "logging")))
    assert "timeSeriesTable" in counts
    ((_, query),) = queries(dashboard(platform, "logging"))
    assert "increase(" in query
    assert "[600s]" in query
    assert logs["logsPanel"] == {"filter": log_filter(platform), "resourceNames": [f"projects/{PROJECT}"]}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["monitoring", "logging"])
def test_no_tile_lies_on_another_or_over_the_edge(platform: Any, name: str) -> None:
    layout = dashboard(platform, name)["mosaicLayout"]
    taken: dict[Any, Any] = {}
    for tile in layout["tiles"]:
        left, top = tile.get("xPos", 0), tile.get("yPos", 0)
        assert min(tile["width"], tile["height"]) > 0
        assert left + tile["width"] <= layout["columns"]
        for x in range(left, left + tile["width"]):
            for y in range(top, top + tile["height"]):
                assert taken.setdefault((x, y), tile) is tile, tile["widget"]["title"]
    assert len(taken) == layout["columns"] * (1 + max(y for _, y in taken))  # Nor is there a gap.


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["monitoring", "logging"])
def test_it_is_a_dashboard_of_the_api(platform: Any, name: str) -> None:
    api = pytest.importorskip("google.cloud.monitoring_dashboard_v1")
    from google.protobuf import json_format  # type: ignore[import-untyped]

    made = dashboard(platform, name)
    read = json_format.ParseDict(made, api.Dashboard.pb()())
    assert len(read.mosaic_layout.tiles) == len(tiles(made))
    assert platform.upper() in read.display_name
    known = RESOURCE_LABELS[OWN_RESOURCE[platform]["type"]]
    assert {chosen.label_key for chosen in read.dashboard_filters} <= known
