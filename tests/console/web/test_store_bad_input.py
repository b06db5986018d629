"""The store with input that no job should write: thousands of metrics, long names, hostile texts, long columns."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import LOG_ID, LocalSource
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal, encode_own_fields
from ml_diagnostics_console._web import wire
from ml_diagnostics_console._web.companions import Companions
from ml_diagnostics_console._web.points_view import points
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.routes import handle
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.store import Store
from ml_diagnostics_console._web.writers import JournalWriters

from .made_runs import SECOND_NS, MadeAttempt, MadeRun

START_NS = 1_763_710_310 * SECOND_NS
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "a\nb\r\tc",
    "\u202eevil\u202c",
    "x" * 1_000,
    "'; DROP TABLE runs; --",
    "../../etc/passwd",
    "emoji \U0001f600 and \u0000",
    "__proto__",
]


@pytest.fixture
def root() -> Path:
    return diagnostics_directory()


@pytest.fixture
def store() -> Store:
    return Store(LocalSource(pytest.fail), clock_ns=lambda: START_NS + 200 * SECOND_NS)


def run_of_metrics(root: Path, names: list[str], payloads: list[dict[str, Any]] | None = None) -> None:
    """Write a run, and a value of each metric, or each payload as an entry of the first one."""
    MadeRun("run-1", START_NS, [MadeAttempt(0, 9)], has_goodput=False, metrics={}).write(root)
    labels = {"run": "run-1", "host": "vm-0", "process_index": "0", "attempt": "1"}
    node = {"type": "generic_node", "labels": {"node_id": "run-1"}}
    journal = Journal(LOG_ID, root=root, labels=labels, resource=node, clock_ns=lambda: START_NS, about_pid=4001)
    for name in names if payloads is None else []:
        journal.append({"values": [1.5], "step_index": 3, "unit": "1"}, resource_labels={"namespace": name})
    for payload in payloads or []:
        journal.append(payload, resource_labels={"namespace": names[0]})
    journal.close(10)


def test_ten_thousand_metrics(root: Path, store: Store) -> None:
    names = [f"layer_{number:05d}/norm" for number in range(10_000)]
    run_of_metrics(root, names)
    store.refresh()
    assert len(store.run("run-1").columns) == 10_000
    answer = handle(store, "/api/runs", {})
    assert len(answer.body) < 10_000
    overview = handle(store, "/api/runs/run-1", {})
    assert overview.status == 200
    assert [metric["name"] for metric in json.loads(overview.body)["metrics_list"]] == names
    assert handle(store, "/api/runs/run-1/points", {"metric": names[-1]}).status == 200


def test_names_and_units_of_any_kind_are_data(root: Path, store: Store) -> None:
    run_of_metrics(root, HOSTILE)
    store.refresh()
    for name in HOSTILE:
        answer = handle(store, "/api/runs/run-1/points", {"metric": name})
        assert answer.status == 200, name
        assert wire.decode(answer.body)[0]["metric"] == name
    overview = json.loads(handle(store, "/api/runs/run-1", {}).body)
    assert len(overview["metrics_list"]) == len(HOSTILE)


def test_a_run_with_hostile_names_is_listed(root: Path, store: Store) -> None:
    run = MadeRun(
        "run-1", START_NS, [MadeAttempt(0, 9, "FAILED", "<script>\nalert(1)")], configs={name: name for name in HOSTILE}
    )
    run.group = "g" * 1_000
    run.write(root)
    store.refresh()
    (row,) = json.loads(handle(store, "/api/runs", {}).body)["rows"]
    assert row["reason"] == "<script>"
    assert len(row["group"]) <= 200
    assert all(len(text) <= 200 for pair in row["config"].items() for text in pair)


@pytest.mark.parametrize(
    "payload",
    [
        {"values": "x"},
        {"values": []},
        {"values": None},
        {"values": [None]},
        {"values": {}},
        {"values": [[1.0]]},
        {"values": ["text"], "unit": "1"},
        {},
        {"step_index": 4},
    ],
)
def test_an_entry_that_is_not_a_value_is_left_out(root: Path, store: Store, payload: dict[str, Any]) -> None:
    good = {"values": [1.0], "step_index": 1, "unit": "1"}
    run_of_metrics(root, ["loss"], [good, payload, {**good, "step_index": 2}])
    store.refresh()
    (column,) = store.run("run-1").columns.of("loss")
    assert column.step.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("payload", "step", "value"),
    [
        ({"values": [1, 3], "step_index": 5, "unit": "1"}, 5, 2.0),
        ({"values": [2], "step_index": 5, "unit": "1"}, 5, 2.0),
        ({"values": 2.5, "step_index": 5.0, "unit": "1"}, 5, 2.5),
        ({"values": [2.5], "step_index": "6", "unit": "1"}, 6, 2.5),
        ({"values": [2.5], "step_index": -1, "unit": "1"}, -1, 2.5),
        ({"values": [2.5], "step_index": 1.5, "unit": "1"}, None, 2.5),
        ({"values": [2.5], "step_index": 2**70, "unit": "1"}, None, 2.5),
        ({"values": [2.5], "step_index": None, "unit": "1"}, None, 2.5),
        ({"values": [2.5], "step_index": True, "unit": "1"}, 1, 2.5),
        ({"values": [2.5], "unit": "1"}, None, 2.5),
        ({"values": ["NaN"], "step_index": 5, "unit": "1", "not_finite": True}, 5, math.nan),
        ({"values": ["-Infinity"], "step_index": 5, "unit": "1", "not_finite": True}, 5, -math.inf),
        ({"values": ["NaN", 3.0], "step_index": 5, "unit": "1", "not_finite": True}, 5, 3.0),
        ({"values": [1.7e308, 1.7e308], "unit": "1"}, None, 1.7e308),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_a_value_of_any_form_is_read(
    root: Path, store: Store, payload: dict[str, Any], step: float | None, value: float, is_known: bool
) -> None:
    before = [{"values": [9.0], "step_index": 0, "unit": "1"}] * is_known
    run_of_metrics(root, ["loss"], [*before, payload])
    store.refresh()
    (column,) = store.run("run-1").columns.of("loss")
    found = column.step[-1]
    assert math.isnan(found) if step is None else found == step
    assert column.value[-1] == value or (math.isnan(value) and math.isnan(column.value[-1]))
    assert handle(store, "/api/runs/run-1/points", {"metric": "loss"}).status == 200


def test_values_of_a_host_are_of_its_process(root: Path, store: Store) -> None:
    host = {"values": [1.0], "unit": "%", "hostname": "vm-0", "process_index": "0"}
    other = {"values": [2.0], "unit": "%", "hostname": "vm-7", "process_index": "7"}
    chips = {**host, "values": [4.0, 6.0], "accelerator_type": "TPU", "accelerator_labels": ["0", "1"]}
    run_of_metrics(root, ["cpu"], [host, host, other, chips])
    store.refresh()
    columns = store.run("run-1").columns.of("cpu")
    assert [(column.process, column.host, column.value.tolist()) for column in columns] == [
        ("0", "vm-0", [1.0, 1.0, 5.0]),
        ("7", "vm-7", [2.0]),
    ]
    assert not columns[0].has_steps


def long_run(count: int) -> RunData:
    run = RunData("run-1", Companions(), JournalWriters(Path("nowhere")))
    column = run.columns.column("loss", "0", "vm-0", "1")
    column.steps.extend(array("d", range(count)))
    column.times.extend(array("d", range(count)))
    column.values.extend(array("d", map(math.sin, range(count))))
    return run


@pytest.mark.slow
def test_a_metric_of_ten_million_values_is_drawn() -> None:
    run = long_run(10_000_000)
    column = run.columns.of("loss")[0]
    column.settle()
    tracemalloc.start()
    started = time.process_time()
    header, columns = wire.decode(points(run, Query({"metric": "loss", "x": "step"})).body)
    seconds = time.process_time() - started
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header["total"] == 10_000_000
    assert len(columns["x"]) <= 2 * 1200 + 4
    assert header["greatest"] == pytest.approx(1.0)
    assert seconds < 10
    assert peak_bytes < 400e6


@pytest.mark.slow
def test_a_million_entries_are_read_in_little_more_time_than_the_reader_takes(root: Path, store: Store) -> None:
    from ml_diagnostics_common.reader import JournalReader

    MadeRun("run-1", START_NS, [MadeAttempt(0, 9)], has_goodput=False, metrics={}).write(root)
    labels = {"run": "run-1", "host": "vm-0", "process_index": "0", "attempt": "1"}
    node = {"type": "generic_node", "labels": {"node_id": "run-1"}}
    journal = Journal(LOG_ID, root=root, labels=labels, resource=node, clock_ns=lambda: START_NS, about_pid=4001)
    suffix, stamp = encode_own_fields(None, {"namespace": "loss"}), str(time.time_ns())
    for step in range(1_000_000):
        text = f'{{"values":[0.5],"step_index":{step},"unit":"1"}}'
        journal.append_text(stamp, text + suffix, str(START_NS + step * 1_000_000))
    journal.close(60)
    started = time.process_time()
    assert sum(map(len, JournalReader(LOG_ID, root=root).read_new())) >= 1_000_000
    reading = time.process_time() - started
    started = time.process_time()
    store.refresh()
    storing = time.process_time() - started
    assert store.run("run-1").columns.points("loss") == 1_000_000
    assert storing < 4 * reading
