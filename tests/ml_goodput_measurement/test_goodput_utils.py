"""The helpers of goodput_utils: light to import, and right about when an entry's event happened."""

from __future__ import annotations

import datetime
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement import goodput_utils
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.goodput_utils import (
    BadputType,
    GCPOptions,
    GoodputInfo,
    StepInfo,
    get_timestamp_from_log_entry,
)

from .histories import BASE, History, MemoryLog, orbax_save
from .loaded_modules import loaded_by

UTC = datetime.timezone.utc


def test_importing_it_loads_nothing_else() -> None:
    loaded = loaded_by("import ml_goodput_measurement.goodput_utils")
    ours = {name.partition(".")[2] for name in loaded if name.startswith(("ml_goodput", "ml_diagnostics"))}
    assert ours == {"", "_version", "goodput_utils", "_lazy_names", "metric_details"}
    assert not {"google", "numpy", "requests", "statistics"} & loaded


def test_every_name_is_there_and_listed() -> None:
    assert dir(goodput_utils) == sorted(goodput_utils.__all__)
    for name in goodput_utils.__all__:
        assert getattr(goodput_utils, name) is not None
    with pytest.raises(AttributeError, match="get_node_zones"):
        goodput_utils.get_node_zones  # noqa: B018


def test_a_result_bears_the_time_at_which_it_was_made() -> None:
    before = datetime.datetime.now(UTC)
    first = GoodputInfo()
    time.sleep(0.001)
    second = GoodputInfo()
    assert before <= first.last_updated_timestamp < second.last_updated_timestamp
    assert GoodputInfo(last_updated_timestamp=before).last_updated_timestamp is before


def test_options_of_one_monitor_are_not_those_of_another() -> None:
    first, second = GCPOptions(), GCPOptions()
    first.project_id = "mine"
    assert second.project_id is None


@pytest.mark.parametrize(
    "thing", [GCPOptions("p"), GoodputInfo(1.0), StepInfo(1.0, {1: 0.5}), BadputType.OTHER, {BadputType.OTHER: 1.0}]
)
def test_what_goes_to_another_process_arrives_there(thing: Any) -> None:
    assert pickle.loads(pickle.dumps(thing)) == thing


def happened(entry: Any) -> float | None:
    found = get_timestamp_from_log_entry(entry)
    assert found is None or found.tzinfo is UTC
    return None if found is None else round(found.timestamp() - BASE, 6)


def test_the_time_of_everything_that_a_recorder_records_is_known() -> None:
    log = MemoryLog()
    recorder = GoodputRecorder("job", "log", True, log)
    moment = datetime.datetime.fromtimestamp(BASE + 3.25, UTC)
    activities = ("job", "tpu_init", "training_preparation", "data_loading", "custom_badput_event")
    for activity in activities:
        for end in ("start", "end"):
            getattr(recorder, f"record_{activity}_{end}_time")(moment)
    recorder.record_step_start_time(7, moment)
    recorder.record_step_end_time(7, moment)
    recorder.record_checkpoint_progress(7, moment)
    assert len(log.payloads) == 2 * len(activities) + 3
    assert [happened(payload) for payload in log.payloads] == [3.25] * len(log.payloads)


def test_the_time_of_elastic_entries_is_known() -> None:
    waits = History().wait(3, 5).reinitialize(7, 9).payloads
    counts = {"active_slices": 1, "total_slices": 2, "elastic_slice_counts_timestamp": BASE + 11}
    assert [happened(payload) for payload in [*waits, counts]] == [3, 5, 7, 9, 11]


def test_orbax_entries_have_the_time_of_their_start() -> None:
    save = orbax_save(3, 10, 12, "/checkpoints")
    # The public library takes the first key with "time" in it, and so an interval for a time of day.
    late = {"time_between_consecutive_saves_sec": 60.0, **save, "time_between_consecutive_saves_sec ": 60.0}
    assert happened(save) == happened(late) == happened(dict(reversed(late.items()))) == 10
    restore = History().restore(3, 20, 25).payloads[0]
    assert happened(restore) == happened({**restore, "checkpoint_manager_start_time": None}) == 20
    assert happened({**save, "checkpoint_manager_blocking_start_time": None}) == 10


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"job_name": "job"},
        {"step_start_time": None, "step_count": 3},
        {"step_start_time": "soon"},
        {"step_start_time": True},
        {"step_start_time": float("nan")},
        {"step_start_time": 1e300},
        {"time": BASE},
        {"time_between_consecutive_saves_sec": 60.0},
        {"custom_badput_event_type": "timeout"},
        "step_start_time",
        Path("a"),
    ],
)
def test_an_entry_without_a_time_has_none(entry: Any) -> None:
    assert get_timestamp_from_log_entry(entry) is None


def test_datetimes_are_times_too() -> None:
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    assert happened({"job_start_time": datetime.datetime.fromtimestamp(BASE + 1, tokyo)}) == 1
    assert happened({"job_start_time": datetime.datetime.fromtimestamp(BASE + 1)}) == 1
