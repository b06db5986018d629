"""Recording: the entry of each kind of value, and no other effect on the job."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import errno
import fractions
import logging
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.metric_types import METRIC_UNITS, MetricType
from google_cloud_mldiagnostics.metrics import record, record_metrics
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.journal import _journal as journal_module

from .kept_entries import kept_entries
from .recorded_runs import RUN, active, metrics_of


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ActiveRun]:
    with active(tmp_path) as run:
        yield run


def payload_of(root: Path) -> dict[str, Any]:
    [(_, payload)] = metrics_of(root)
    return payload


# --- The entry ----------------------------------------------------------------------------------------


def test_an_entry_is_that_of_the_public_package(tmp_path: Path, run: ActiveRun) -> None:
    record(MetricType.LOSS, 0.123, step=1)
    [entry] = kept_entries(root=tmp_path)
    assert entry.payload == {"values": [0.123], "step_index": 1, "unit": "1"}
    assert entry.resource == {
        "type": "generic_node",
        "labels": {"location": "us-central1", "namespace": "loss", "node_id": RUN},
    }
    assert entry.context.log_id == "ml_diagnostics_metric"
    assert entry.severity == "INFO"


@pytest.mark.parametrize("metric", list(MetricType))
def test_each_predefined_metric_has_its_name_and_unit(tmp_path: Path, run: ActiveRun, metric: MetricType) -> None:
    record(metric, 1.0)
    assert metrics_of(tmp_path) == [(metric.value, {"values": [1.0], "unit": METRIC_UNITS[metric.value]})]


@pytest.mark.parametrize("name", ["custom", "eval/loss", 'quo"ted', "with\nnewline", "日本", "\ud83d", "a" * 500])
def test_any_text_is_a_metric(tmp_path: Path, run: ActiveRun, name: str) -> None:
    record(name, 1.0, 2)
    record(name, 2.0, 3, {"split": "test"})
    written = name.encode("utf-8", "backslashreplace").decode()
    assert [name for name, _ in metrics_of(tmp_path)] == [written, written]


def test_members_of_other_enums_are_accepted_as_names(tmp_path: Path, run: ActiveRun) -> None:
    record(enum.Enum("Mine", {"A": "loss"}).A, 1.0)  # type: ignore[attr-defined]
    record(enum.StrEnum("Mine", {"A": "mine"}).A if hasattr(enum, "StrEnum") else "mine", 1.0)
    assert metrics_of(tmp_path) == [(name, {"values": [1.0], "unit": "1"}) for name in ("loss", "mine")]


@pytest.mark.parametrize("name", ["", "mlrun_configs", None, 7, b"loss", ["loss"]])
def test_an_invalid_name_is_counted(
    tmp_path: Path, run: ActiveRun, caplog: pytest.LogCaptureFixture, name: Any
) -> None:
    record(name, 1.0)
    record(name, 2)
    assert metrics_of(tmp_path) == []
    assert run.log.lost_values.total() == 2
    assert len(caplog.records) == 1


# --- Values -------------------------------------------------------------------------------------------

ONE_AND_A_HALF: list[Any] = [
    1.5,
    numpy.float16(1.5),
    numpy.float32(1.5),
    numpy.float64(1.5),
    numpy.longdouble(1.5),
    numpy.array(1.5),
    numpy.array(1.5, dtype=numpy.float32),
    numpy.array([1.5]),
    decimal.Decimal("1.5"),
    fractions.Fraction(3, 2),
    [1.5],
    (1.5,),
    [numpy.float32(1.5)],
]


@pytest.mark.parametrize("value", ONE_AND_A_HALF, ids=lambda value: f"{type(value).__name__}-{value}")
def test_every_kind_of_number_is_recorded(tmp_path: Path, run: ActiveRun, value: Any) -> None:
    record("x", value, step=3)
    assert payload_of(tmp_path) == {"values": [1.5], "step_index": 3, "unit": "1"}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7.0),
        (True, 1.0),
        (False, 0.0),
        (-0.0, -0.0),
        (1e-320, 1e-320),
        (2**80, float(2**80)),
        (numpy.bool_(True), 1.0),
        (numpy.int8(-3), -3.0),
        (numpy.uint64(2**64 - 1), float(2**64)),
        (numpy.array(True), 1.0),
    ],
)
def test_integers_and_booleans_are_numbers(tmp_path: Path, run: ActiveRun, value: Any, number: float) -> None:
    record("x", value)
    assert payload_of(tmp_path)["values"] == [number]


def test_bfloat16_is_a_number(tmp_path: Path, run: ActiveRun) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    record("x", bfloat16(1.5))
    record("x", numpy.array([1.5, 2], dtype=bfloat16))
    assert [payload["values"] for _, payload in metrics_of(tmp_path)] == [[1.5], [1.5, 2.0]]


@pytest.mark.parametrize("kind", [list, tuple, numpy.array, lambda values: numpy.array(values, dtype="float32")])
def test_a_list_keeps_one_value_a_chip(tmp_path: Path, run: ActiveRun, kind: Callable[[list[float]], Any]) -> None:
    record(MetricType.TPU_DUTY_CYCLE, kind([10.0, 20.0, 30.0, 40.0]))
    assert payload_of(tmp_path) == {"values": [10.0, 20.0, 30.0, 40.0], "unit": "%"}
    assert run.log.averages.as_dict()["tpu_duty_cycle"]["mean"] == 25.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (numpy.float32("nan"), "NaN")],
)
def test_a_number_that_json_lacks_is_recorded_and_marked(
    tmp_path: Path, run: ActiveRun, value: float, text: str
) -> None:
    record("loss", value, step=1)
    assert payload_of(tmp_path) == {"values": [text], "step_index": 1, "unit": "1", "not_finite": True}


class Broken:
    def __float__(self) -> float:
        raise RuntimeError("no")


class Liar(float):
    def __float__(self) -> float:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "}"


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
NO_VALUES: list[Any] = [
    None,
    "1.5",
    b"1",
    [],
    (),
    {},
    {"a": 1},
    object(),
    1j,
    numpy.complex64(1),
    numpy.timedelta64(3, "s"),
    numpy.datetime64("2026-11-21"),
    numpy.array(["1"]),
    numpy.zeros((2, 2)),
    numpy.zeros(0),
    numpy.array(None),
    [1.0, "a"],
    [[1.0]],
    [None],
    [0.0] * 10_001,
    10**400,
    Broken(),
    decimal.Decimal("sNaN"),
    RECURSIVE,
    float,
    print,
]


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: type(value).__name__)
def test_a_value_that_is_not_a_number_is_counted_and_logged_once(
    tmp_path: Path, run: ActiveRun, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    for step in range(3):
        record("x", value, step=step)
    record("x", 1.0)
    assert [payload["values"] for _, payload in metrics_of(tmp_path)] == [[1.0]]
    assert run.log.statistics().lost_values == {next(iter(run.log.lost_values)): 3}
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert "x could not be recorded" in warning.getMessage()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "got none"),
        ({"value": 1.0, "labels": ["a"]}, "expected labels as a mapping, got list"),
        (
            {"value": 1.0, "timestamp": "yesterday"},
            "expected a timestamp in seconds, RFC 3339 or datetime, got an inva",
        ),
        ({"value": 1.0, "timestamp": [1]}, "expected a timestamp in seconds, RFC 3339 or datetime, got list"),
        ({"value": numpy.zeros((2, 3))}, "expected a scalar or 1-D array, got an array of 2 dimensions"),
    ],
)
def test_a_warning_names_the_metric_and_what_is_expected(
    run: ActiveRun, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], reason: str
) -> None:
    record("loss", **arguments)
    [warning] = caplog.records
    assert "A value of loss could not be recorded" in warning.getMessage()
    assert reason in warning.getMessage()


def test_a_subclass_of_float_is_recorded_by_its_own_value_or_refused(tmp_path: Path, run: ActiveRun) -> None:
    record("x", Liar(2.5))
    assert [payload["values"] for _, payload in metrics_of(tmp_path)] in ([[2.5]], [])


def test_dropped_values_are_recorded_in_the_log_itself(tmp_path: Path, run: ActiveRun) -> None:
    record("x", None)
    record("x", None)
    run.log.flush(5)
    record("x", None)
    run.log.flush(5)
    run.log.flush(5)
    lost = [entry for entry in kept_entries(root=tmp_path) if entry.resource_label("namespace") == "mlrun_losses"]
    assert [sum(entry.payload["lost_values"].values()) for entry in lost] == [2, 1]
    assert lost[0].payload["hostname"] == "host-a"


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.frozensets(st.text()),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=JUNK, value=JUNK, step=JUNK, labels=JUNK, on_all=JUNK, timestamp=JUNK)
def test_invalid_values_raise_nothing_and_are_all_counted(
    tmp_path: Path, run: ActiveRun, name: Any, value: Any, step: Any, labels: Any, on_all: Any, timestamp: Any
) -> None:
    before = run.log.statistics().journal.accepted
    lost = run.log.lost_values.total()
    record(name, value, step, labels, on_all, timestamp=timestamp)
    record_metrics([{"metric_name": name, "value": value, "step": step, "labels": labels}], step=step)
    written = run.log.statistics().journal.accepted - before
    assert written + run.log.lost_values.total() - lost >= 2
    assert len(kept_entries(root=tmp_path)) == run.log.statistics().journal.written
    LOSSES._counts.clear()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.floats() | st.integers(-(2**1000), 2**1000), step=st.integers(-(2**63) + 1, 2**63 - 1))
def test_every_number_is_read_back_unchanged(tmp_path: Path, run: ActiveRun, value: float, step: int) -> None:
    record("x", value, step)
    _, payload = max(
        ((entry.sequence, entry.payload) for entry in kept_entries(root=tmp_path)), key=lambda numbered: numbered[0]
    )
    [written_value] = payload["values"]
    assert float(written_value) == float(value) or (math.isnan(value) and written_value == "NaN")
    assert payload["step_index"] == step


# --- Steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, 7.0, "7", numpy.int64(7), numpy.float32(7), numpy.array(7), fractions.Fraction(7)])
def test_a_value_that_int_converts_exactly_is_a_step(tmp_path: Path, run: ActiveRun, step: Any) -> None:
    record("x", 1.0, step)
    assert payload_of(tmp_path)["step_index"] == 7
    assert run.log.lost_values == {}


@pytest.mark.parametrize(
    "step", [1.5, "a", "1.5", math.nan, math.inf, object(), [1], 10**30, -(2**63), numpy.array([7, 8])]
)
def test_a_value_without_a_usable_step_is_recorded_and_counted(tmp_path: Path, run: ActiveRun, step: Any) -> None:
    record("x", 1.0, step)
    assert payload_of(tmp_path) == {"values": [1.0], "unit": "1"}
    assert run.log.lost_values.total() == 1


# --- Labels, hosts, times -----------------------------------------------------------------------------


def test_labels_never_replace_the_fields_of_a_value(tmp_path: Path, run: ActiveRun) -> None:
    labels = {"split": "test", "values": "x", "step_index": "y", "unit": "z", "not_finite": "n", "label_unit": "w"}
    record("loss", 0.5, 3, labels)
    assert payload_of(tmp_path) == {
        "values": [0.5],
        "step_index": 3,
        "unit": "1",
        "split": "test",
        "label_values": "x",
        "label_step_index": "y",
        "label_unit": "z",
        "label_not_finite": "n",
        "label_label_unit": "w",
    }


def test_labels_that_are_none_cost_only_themselves(tmp_path: Path, run: ActiveRun) -> None:
    record("loss", 0.5, 3, ["split"])  # type: ignore[arg-type]
    record("loss", 0.5, 3, {1: 2, None: None})  # type: ignore[dict-item]
    assert [payload for _, payload in metrics_of(tmp_path)] == [
        {"values": [0.5], "step_index": 3, "unit": "1"},
        {"values": [0.5], "step_index": 3, "unit": "1", "1": "2", "None": "None"},
    ]
    assert run.log.lost_values.total() == 1


def test_only_the_first_process_records_unless_all_shall(tmp_path: Path) -> None:
    with active(tmp_path, process_index=1) as run:
        record("loss", 1.0)
        record_metrics([{"metric_name": "loss", "value": 1}])
        record("loss", 2.0, 1, {"hostname": "mine"}, record_on_all_hosts=True)
        assert run.log.lost_values == {}
    expected = {"hostname": "host-a", "process_index": "1", "label_hostname": "mine"}
    assert metrics_of(tmp_path) == [("loss", {"values": [2.0], "step_index": 1, "unit": "1", **expected})]


@pytest.mark.parametrize(
    "timestamp",
    [
        datetime.datetime(2026, 11, 21, 5, 36, 43, 250_000, tzinfo=datetime.timezone.utc),
        1795239403.25,
        "2026-11-21T05:36:43.25Z",
        numpy.float64(1795239403.25),
    ],
)
def test_a_value_has_the_time_that_it_is_given(tmp_path: Path, run: ActiveRun, timestamp: Any) -> None:
    record("loss", 1.0, 1, timestamp=timestamp)
    record_metrics([{"metric_name": "loss", "value": 1.0, "step": 1}], timestamp=timestamp)
    record_metrics([{"metric_name": "loss", "value": 1.0, "step": 1, "timestamp": timestamp}])
    assert [entry.timestamp_ns for entry in kept_entries(root=tmp_path)] == [1_795_239_403_250_000_000] * 3


@pytest.mark.parametrize("timestamp", ["yesterday", math.nan, -1, 1e30, object(), datetime.date(2026, 11, 21), 0])
def test_an_invalid_timestamp_is_counted_and_replaced_by_the_current_time(
    tmp_path: Path, run: ActiveRun, timestamp: Any
) -> None:
    record("loss", 1.0)
    record("loss", 2.0, timestamp=timestamp)
    first, second = kept_entries(root=tmp_path)
    assert 0 <= second.timestamp_ns - first.timestamp_ns < 60 * 10**9
    assert run.log.lost_values.total() == 1


# --- Several at once ----------------------------------------------------------------------------------


def test_record_metrics_does_not_change_its_arguments(tmp_path: Path, run: ActiveRun) -> None:
    items: list[dict[str, Any]] = [
        {"metric_name": MetricType.LOSS, "value": 0.5, "labels": {"a": "b"}},
        {"metric_name": "mine", "value": [1, 2], "step": 9},
    ]
    before = copy.deepcopy(items)
    record_metrics(items, step=1)
    record_metrics(items, False, 2)
    assert items == before
    assert [(name, payload["step_index"]) for name, payload in metrics_of(tmp_path)] == [
        ("loss", 1),
        ("mine", 9),
        ("loss", 2),
        ("mine", 9),
    ]


def test_one_bad_item_does_not_drop_the_others(tmp_path: Path, run: ActiveRun) -> None:
    record_metrics(
        [
            {"metric_name": "a", "value": 1},
            {"value": 1},
            {"metric_name": "b"},
            "c",  # type: ignore[list-item]
            {"metric_name": "d", "value": numpy.int64(4), "step": numpy.int64(5)},
            {"metric_name": "e", "value": object()},
            {"metric_name": "f", "value": 6},
        ]
    )
    assert [name for name, _ in metrics_of(tmp_path)] == ["a", "d", "f"]
    assert run.log.lost_values.total() == 4


@pytest.mark.usefixtures("in_production")
@pytest.mark.parametrize("items", [None, 5, {"metric_name": "a", "value": 1}, "loss"])
def test_an_invalid_list_of_metrics_raises_nothing(tmp_path: Path, run: ActiveRun, items: Any) -> None:
    record_metrics(items)
    assert LOSSES.total() >= 1
    assert metrics_of(tmp_path) == []


# --- Runs ---------------------------------------------------------------------------------------------


def test_without_a_run_values_are_counted_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    set_active_run(None)
    for _ in range(1000):
        record("loss", 1.0)
    record_metrics([{"metric_name": "loss", "value": 1}])
    assert LOSSES["metrics: no run"] == 1001
    [warning] = caplog.records
    assert "machinelearning_run" in warning.getMessage()


def test_values_are_recorded_to_the_current_run(tmp_path: Path) -> None:
    with active(tmp_path, run_id="first"):
        record("loss", 1.0)
    with active(tmp_path, run_id="second"):
        record("loss", 2.0)
    assert metrics_of(tmp_path, "first") == [("loss", {"values": [1.0], "unit": "1"})]
    assert metrics_of(tmp_path, "second") == [("loss", {"values": [2.0], "unit": "1"})]


def test_threads_lose_nothing(tmp_path: Path, run: ActiveRun) -> None:
    def work(number: int) -> None:
        for step in range(2000):
            record(f"metric-{number % 2}", float(step), step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(metrics_of(tmp_path)) == 8000
    averages = run.log.averages.as_dict()
    assert {name: averaged["count"] for name, averaged in averages.items()} == {
        "metric-0": 4000,
        "metric-1": 4000,
    }
    assert averages["metric-0"]["mean"] == pytest.approx(999.5)


def test_names_without_end_do_not_grow_memory_without_bound(tmp_path: Path, run: ActiveRun) -> None:
    from google_cloud_mldiagnostics import metrics

    for number in range(10_050):
        record(f"name-{number}", 1.0)
    recorded = metrics._recorded_run_of_this_process
    assert recorded is not None
    assert len(recorded.metrics) <= 10_000
    assert len(run.log.averages.as_dict()) <= 10_000


@pytest.mark.usefixtures("in_production")
def test_a_bug_of_ours_is_counted_not_raised(tmp_path: Path, run: ActiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(RunLog, "lose", broken)
    record("loss", object())
    record_metrics([{"metric_name": "loss", "value": None}])
    assert LOSSES.total() >= 2


def test_a_full_disk_is_counted_and_reported_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with active(tmp_path) as run:
        record("loss", 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "_write", full)
            for _ in range(1000):
                record("loss", 2.0, labels={"text": "x" * 10_000})  # 10 MB: more than the journal holds.
        run.log.flush(5)
        record("loss", 3.0)
        accepted, written, held, dropped = run.log.statistics().journal
    assert accepted == written + held + sum(dropped.values())
    assert held == 0
    losses = [entry for entry in kept_entries(root=tmp_path) if entry.resource_label("namespace") == "mlrun_losses"]
    assert sum(entry.payload["lost_entries"]["disk_full"] for entry in losses) == dropped["disk_full"] > 0
    assert len(metrics_of(tmp_path)) == 1002 - dropped["disk_full"]


def test_labels_cannot_move_a_value_to_another_process(tmp_path: Path) -> None:
    with active(tmp_path):
        record("loss", 1.0, 1, {"hostname": "elsewhere", "process_index": "7"})
    [(_, payload)] = metrics_of(tmp_path)
    assert not {"hostname", "process_index"} & payload.keys()
    assert (payload["label_hostname"], payload["label_process_index"]) == ("elsewhere", "7")


def test_a_masked_value_is_counted_as_not_a_number(
    tmp_path: Path, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    numpy = pytest.importorskip("numpy")
    with active(tmp_path) as run:
        for value in (numpy.ma.masked, [numpy.ma.masked, 1.0], numpy.ma.array([1.0, 2.0], mask=[0, 1])):
            record("loss", value, 1)
        record("loss", numpy.ma.array([1.0, 2.0]), 2)
        assert run.log.lost_values.total() == 3
    assert [payload["values"] for _, payload in metrics_of(tmp_path)] == [[1.0, 2.0]]
    assert caplog.text.count("is masked") == 1


def test_a_dropped_step_is_logged_once_with_its_metric(
    tmp_path: Path, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    with active(tmp_path):
        record("loss", 1.0, 1.5)  # type: ignore[arg-type]
        record("loss", 2.0, 2.5)  # type: ignore[arg-type]
    assert [payload.get("step_index") for _, payload in metrics_of(tmp_path)] == [None, None]
    assert caplog.text.count("A value of loss") == 1
    assert "recorded without it" in caplog.text


@pytest.mark.parametrize(("arguments", "step"), [((1.0,), None), ((1.0, 7), 7), ((3, 7), 7)], ids=repr)
def test_a_value_beside_a_mapping_is_warned_of_once(
    tmp_path: Path, in_production: None, caplog: pytest.LogCaptureFixture, arguments: tuple[Any, ...], step: int | None
) -> None:
    with active(tmp_path) as run:
        record({"loss": 0.5}, *arguments)
        record({"loss": 0.25}, *arguments)
        assert run.log.lost_values.total() == 2
    found = [(payload["values"], payload.get("step_index")) for _, payload in metrics_of(tmp_path)]
    assert found == [([0.5], step), ([0.25], step)]
    assert caplog.text.count("a value beside a mapping is ignored") == 1


def test_an_optional_mapping_of_none_is_not_counted_as_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with active(tmp_path) as run:
        record({"loss": 0.5}, None)
        record({"loss": 0.5}, None, step=3)
        assert run.log.lost_values.total() == 0
    assert caplog.records == []


def test_a_mapping_records_each_of_its_values(
    tmp_path: Path, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    with active(tmp_path) as run:
        record({"loss": 1.0, MetricType.MFU: 2}, step=3)
        record({"loss": 0.5}, 4)
        assert run.log.lost_values.total() == 0
        record("loss")
        record({}, step=5)
        record({"nested": {"loss": 1.0}}, step=6)
        assert run.log.lost_values.total() == 3
    found = [(fields, payload["values"], payload["step_index"]) for fields, payload in metrics_of(tmp_path)]
    assert found == [("loss", [1.0], 3), ("mfu", [2.0], 3), ("loss", [0.5], 4)]
