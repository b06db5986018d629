"""The gauges of Cloud Monitoring: types, labels and values of contract with the dashboards that people have."""

import math
from typing import Any

import pytest
from ml_goodput_measurement._export.gauges import OTHER_EVENTS, event_seconds, gauges_of
from ml_goodput_measurement.gcp_metrics import ValueType
from ml_goodput_measurement.goodput_utils import BadputType

from .snapshots import BADPUT_SECONDS, cumulative, deviation, snapshot, window, with_events

PREFIX = "compute.googleapis.com/workload/"
EVENTS = ("EVAL", "SDC CHECK")


def gauges(given: Any, own_events: Any = EVENTS, **changes: Any) -> Any:
    """Return the values by type without its prefix, then by the labels without the accelerator."""
    arguments = {"accelerator_type": "TPU-v5p", "cluster_name": "", "include_slice_efficiency": True, **changes}
    found: dict[Any, Any] = {}
    for gauge in gauges_of(given, own_events=own_events, **arguments):
        labels = dict(gauge.labels)
        assert gauge.metric_type.startswith(PREFIX)
        name = gauge.metric_type.removeprefix(PREFIX)
        assert labels.pop("accelerator_type", None) == (None if name == "performance" else "TPU-v5p")
        assert gauge.value_type is (
            ValueType.INT if name in ("disruptions", "max_productive_steps") else ValueType.DOUBLE
        )
        found.setdefault(name, {})[tuple(sorted(labels.values()))] = gauge.value
    return found


def test_the_whole_life_of_a_job_in_full() -> None:
    assert gauges(snapshot(cumulative=cumulative())) == {
        "goodput_time": {("TOTAL",): 875.0},
        "badput_time": {
            **{
                (kind.name,): value
                for kind, value in BADPUT_SECONDS.items()
                if kind not in (BadputType.DATA_LOADING_ASYNC, BadputType.CUSTOM_BADPUT_EVENTS)
            },
            ("CUSTOM_BADPUT_EVENTS.EVAL",): 12.0,
            ("CUSTOM_BADPUT_EVENTS.SDC CHECK",): 13.0,
        },
        "disruptions": {("cumulative",): 2},
        "max_productive_steps": {(): 41},
        "total_elapsed_time": {("cumulative",): 1000.0},
        "performance": {(): 1.25},
        "stepping_slice_efficiency": {("0", "CUMULATIVE"): 0.5},
        "available_slice_efficiency": {("0", "CUMULATIVE"): 0.75},
    }


def test_windows_in_full() -> None:
    several = gauges(snapshot(windows=(window(3600), window(86400, goodput_percent=80.0))))
    assert several == {
        "interval_goodput": {("3600", "TOTAL"): 90.0, ("86400", "TOTAL"): 80.0},
        "interval_badput": {
            (size, source): value
            for size in ("3600", "86400")
            for source, value in (("TPU_INITIALIZATION", 1.0), ("CUSTOM_BADPUT_EVENTS.EVAL", 2.0))
        },
        "stepping_slice_efficiency": {("3600", "INTERVAL"): 0.5, ("86400", "INTERVAL"): 0.5},
        "available_slice_efficiency": {("3600", "INTERVAL"): 0.75, ("86400", "INTERVAL"): 0.75},
    }


def test_deviation_is_the_one_from_the_baseline() -> None:
    assert gauges(snapshot(deviation=deviation(0.25))) == {"step_time_deviation": {(): 0.25}}
    assert gauges(snapshot(deviation=deviation(None))) == {}  # type: ignore[arg-type]


def test_unknown_or_unrequested_values_are_not_sent() -> None:
    bare = cumulative(ideal_step_seconds=None, slice_efficiency=None)
    assert not {"performance", "stepping_slice_efficiency", "available_slice_efficiency"} & set(
        gauges(snapshot(cumulative=bare))
    )
    assert not [name for name in gauges(snapshot(), include_slice_efficiency=False) if "slice" in name]


@pytest.mark.parametrize("name", ["", "cluster-7"])
def test_the_cluster_is_a_label_of_all_but_performance(name: str) -> None:
    found = gauges_of(snapshot(), accelerator_type="a", cluster_name=name, own_events=EVENTS)
    for gauge in found:
        expected = name if name and not gauge.metric_type.endswith("/performance") else None
        assert dict(gauge.labels).get("cluster_name") == expected


def test_each_label_has_its_name() -> None:
    found = gauges_of(
        snapshot(), accelerator_type="a", cluster_name="c", own_events=EVENTS, include_slice_efficiency=True
    )
    names = {gauge.metric_type.removeprefix(PREFIX): set(dict(gauge.labels)) for gauge in found}
    common = {"accelerator_type", "cluster_name"}
    assert names == {
        "goodput_time": common | {"goodput_source"},
        "badput_time": common | {"badput_source"},
        "disruptions": common | {"window_type"},
        "max_productive_steps": common,
        "step_time_deviation": common,
        "total_elapsed_time": common | {"window_type"},
        "performance": set(),
        "stepping_slice_efficiency": common | {"window_type", "rolling_window_size"},
        "available_slice_efficiency": common | {"window_type", "rolling_window_size"},
        "interval_goodput": common | {"goodput_source", "rolling_window_size"},
        "interval_badput": common | {"badput_source", "rolling_window_size"},
    }


def test_types_of_events_without_series_of_their_own_are_summed() -> None:
    found = gauges(snapshot(cumulative=with_events(1000)), own_events={"EVENT_1000", "EVENT_0001"})
    events = {source: value for (source,), value in found["badput_time"].items()}
    assert events == {
        "CUSTOM_BADPUT_EVENTS.EVENT_1000": 1000.0,
        "CUSTOM_BADPUT_EVENTS.EVENT_0001": 1.0,
        f"CUSTOM_BADPUT_EVENTS.{OTHER_EVENTS}": sum(range(2, 1000)),
    }


def test_events_with_the_same_label_are_summed() -> None:
    long = {"X" * 2000 + "1": 1.0, "X" * 2000 + "2": 2.0, OTHER_EVENTS: 4.0, "SMALL": 8.0}
    kinds = {BadputType.CUSTOM_BADPUT_EVENTS: long}
    found = gauges(snapshot(cumulative=cumulative(badput_seconds=kinds)), own_events=set(long) - {"SMALL"})
    assert sorted(found["badput_time"].values()) == [3.0, 12.0]
    assert {len(source) <= 1024 for (source,) in found["badput_time"]} == {True}


def test_no_series_is_there_twice_and_none_without_a_number() -> None:
    given = snapshot(windows=(window(60), window(60)), cumulative=cumulative(total_elapsed_seconds=math.nan))
    found = gauges_of(given, accelerator_type="a", cluster_name="", own_events=EVENTS)
    assert len({gauge.key for gauge in found}) == len(found)
    assert not [gauge for gauge in found if gauge.metric_type.endswith("total_elapsed_time")]


def test_events_are_found_in_every_part() -> None:
    given = snapshot(
        cumulative=with_events(1),
        windows=(window(60, badput_percent={BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 3.0}}),),
    )
    assert event_seconds(given) == {"EVENT_0001": 1.0, "EVAL": 3.0}
