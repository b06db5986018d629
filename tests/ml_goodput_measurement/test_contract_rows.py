"""Rules for counting activities, steps and checkpoints that no other file tests: a rule a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement.goodput import BadputType, GoodputCache
from ml_goodput_measurement.partition import Bucket

from .accounts import (
    CUSTOM,
    IN_FLIGHT,
    INIT,
    LOAD,
    PREP,
    PRODUCTIVE,
    REINIT,
    RESTORE,
    SAVE,
    SCALE_UP,
    SLICE_DOWN,
    STARTUP,
    UNKNOWN,
    account_of,
    calculator_of,
    flat,
)
from .histories import BASE, History, MemoryLog
from .test_elastic import calculator as elastic_calculator
from .test_intervals import at

# --- Activities: pairs of a start and an end ----------------------------------------------------------------

_ACTIVITIES = [
    ("tpu_init", {}, INIT),
    ("training_prep", {}, PREP),
    ("data_loading", {}, LOAD),
    ("custom_badput_event", {"custom_badput_event_type": "eval"}, CUSTOM),
    ("elastic_wait", {"elastic_wait_event_type": "slice_down"}, SLICE_DOWN),
    ("elastic_wait", {"elastic_wait_event_type": "Scale_Up_Event"}, SCALE_UP),
    ("elastic_reinit", {}, REINIT),
]


@pytest.mark.parametrize(("stem", "more", "bucket"), _ACTIVITIES)
def test_an_end_closes_the_latest_start_and_one_without_a_start_closes_nothing(
    stem: str, more: dict[str, str], bucket: Bucket
) -> None:
    """An end at 2; starts at 4 and, after a crash within, at 10; an end at 15, and another one at 17."""
    job = History().start(0)
    for kind, second in (("end", 2), ("start", 4), ("start", 10), ("end", 15), ("end", 17)):
        job.add(**more, **{f"{stem}_{kind}_time": BASE + second})
    truth = account_of(job.steps(range(5), at=20).end(70))
    assert truth.seconds == {bucket: 5, UNKNOWN: 15, PRODUCTIVE: 50}


def test_custom_events_of_two_types_are_paired_each_with_its_own() -> None:
    job = History().start(0).steps([0, 1], at=0, each=50)
    for kind, event, second in (("start", "eval", 5), ("start", "sdc", 10), ("end", "EVAL", 15), ("end", "sdc", 30)):
        job.add(custom_badput_event_type=event, **{f"custom_badput_event_{kind}_time": BASE + second})
    truth = account_of(job.end(100))
    # The five seconds that both had count once.
    assert {kind: ns / 1e9 for kind, ns in truth.report.custom.items()} == {"EVAL": 10, "SDC": 15}


@pytest.mark.parametrize(("first", "last"), [(30, 30), (40, 35)])
def test_a_custom_event_without_length_is_none(first: float, last: float) -> None:
    truth = account_of(History().start(0).steps(range(5), at=0).custom(first, last).end(50))
    assert truth.seconds == {PRODUCTIVE: 50}
    assert truth.report.custom == {}


def test_the_first_data_load_is_waited_for_and_the_others_run_beside_the_steps() -> None:
    job = History().start(0).load(0, 2).step(0, 2)
    for number in range(1, 4):
        job.load(10 * number, 10 * number + 1).step(number, 10 * number + 2)
    truth = account_of(job.end(42))
    assert truth.seconds == {LOAD: 2, PRODUCTIVE: 40}
    assert truth.report.data_loading_async_ns == 3 * 10**9


# --- Buckets and kinds of badput ----------------------------------------------------------------------------

_BUCKETS_WITHOUT_A_KIND = {
    Bucket.PRODUCTIVE: "it is goodput",
    Bucket.EXCLUDED: "excluded time counts neither as goodput nor as badput",
    Bucket.IN_FLIGHT: "part of OTHER: the public package has no kind for a step that may still count",
    Bucket.UNKNOWN: "part of OTHER: nothing was recorded about it",
}
_KINDS_WITHOUT_A_BUCKET = {
    BadputType.DATA_LOADING_ASYNC: "it overlaps steps, so the sum of the wall time does not include it",
    BadputType.OTHER: "the sum of IN_FLIGHT, UNKNOWN and, of a window, the time outside of the job",
}


def test_each_bucket_has_a_kind_of_badput_or_a_reason_to_have_none() -> None:
    """A bucket without either would be missing in every breakdown, and the shares would not sum to 100 percent."""
    kinds = {kind.name: kind for kind in BadputType}
    assert {bucket for bucket in Bucket if bucket.value not in kinds} == _BUCKETS_WITHOUT_A_KIND.keys()
    assert set(kinds.values()) - {kinds.get(bucket.value) for bucket in Bucket} == _KINDS_WITHOUT_A_BUCKET.keys()


def test_the_time_of_each_bucket_is_in_the_breakdown() -> None:
    """`account_of` compares the breakdown with the report, by the names of the buckets."""
    job = History().start(0).init(0, 2).prepare(2, 4).steps(range(6), at=10)
    job.start(80).restore(3, 80, 81).load(81, 82).step(3, 82).steps(range(4, 12), at=112)
    job.custom(121, 122).save(5, 131, 132).wait(141, 142).wait(151, 152, "scale_up").reinitialize(161, 162)
    truth = account_of(job, now=200)
    assert set(truth.seconds) == set(Bucket) - {Bucket.EXCLUDED}


# --- Shares -------------------------------------------------------------------------------------------------


def test_a_job_that_has_made_no_step_has_badput_only(tmp_path: Path) -> None:
    job = History().start(0).init(0, 15).prepare(15, 20)
    percent, breakdown, last_step = calculator_of(MemoryLog(job.payloads), 20, tmp_path).get_job_goodput(True)
    assert (percent, last_step) == (0.0, 0)
    assert (breakdown[BadputType.TPU_INITIALIZATION], breakdown[BadputType.TRAINING_PREP]) == (75.0, 25.0)


def test_what_takes_the_whole_time_has_all_of_it(tmp_path: Path) -> None:
    calculator = calculator_of(MemoryLog(History().start(0).init(0, 20).payloads), 20, tmp_path)
    percent, breakdown, _ = calculator.get_job_goodput(True)
    assert percent + sum(flat(breakdown).values()) == breakdown[BadputType.TPU_INITIALIZATION] == 100.0


def test_the_last_step_is_done_where_the_job_has_ended_and_runs_where_it_has_not() -> None:
    job = History().start(0).steps(range(5), at=0)
    assert account_of(job, now=50).last_step == 3
    assert account_of(job.end(50)).last_step == 4


# --- Startup ------------------------------------------------------------------------------------------------


def test_a_step_that_is_alone_has_no_startup() -> None:
    """The length of a usual step is unknown."""
    assert account_of(History().start(0).step(0, 0).step(1, 100), now=101).seconds == {PRODUCTIVE: 100, IN_FLIGHT: 1}


def test_startup_is_what_the_first_step_took_more_than_the_others_in_the_mean() -> None:
    """40 s, against 10, 10, 10 and 50 s."""
    job = History().start(0).step(0, 0).steps([1, 2, 3], at=40).step(4, 70).step(5, 120).end(130)
    assert account_of(job).seconds == {STARTUP: 40 - 20, PRODUCTIVE: 110}  # The last step's end was not recorded.


def test_a_first_step_that_no_next_number_follows_has_no_startup() -> None:
    """The end of step 0 is unknown, since step 5 is recorded next."""
    truth = account_of(History().start(0).step(0, 0).steps(range(5, 10), at=100).end(150))
    assert truth.seconds == {PRODUCTIVE: 50, UNKNOWN: 100}


# --- Checkpoints --------------------------------------------------------------------------------------------


def test_a_step_that_is_saved_to_a_bucket_and_to_a_disk_is_saved_twice() -> None:
    job = History().start(0).steps(range(6), at=0).save(3, 32, 34).save(3, 35, 36, "/local").end(60)
    assert account_of(job).seconds[SAVE] == 3


def test_hosts_that_took_different_times_count_with_their_mean() -> None:
    job = History().start(0).steps(range(6), at=0).save(3, 32, 34).save(3, 32, 36).save(3, 32, 35).end(60)
    assert account_of(job).seconds[SAVE] == 3


def test_an_emergency_restore_is_a_restore() -> None:
    job = History().start(0).restore(5, 2, 6, "/local")
    job.payloads[-1] |= {
        "event_type": "emergency_restore",
        "is_restoring_slice": True,
        "in_primary_slice": False,
        "broadcast_start_time": BASE + 3,
        "broadcast_duration_secs": 1.0,
    }
    assert account_of(job.steps(range(6, 10), at=10).end(50)).seconds == {RESTORE: 4, UNKNOWN: 6, PRODUCTIVE: 40}


# --- Step times ---------------------------------------------------------------------------------------------


def test_the_time_of_a_step_is_all_that_passed_until_the_next(tmp_path: Path) -> None:
    """Also of the first one, and with the custom events and saves in it; of a gap in the numbers nothing is known."""
    job = History().start(0).step(0, 0).step(1, 25).step(2, 35).custom(37, 41).save(2, 42, 44).step(3, 47).step(7, 99)
    deviations = calculator_of(MemoryLog(job.step(8, 109).payloads), 110, tmp_path).get_step_deviation(10)
    assert deviations == {0: 15, 1: 0, 2: 2, 7: 0}


# --- Windows ------------------------------------------------------------------------------------------------


def test_the_end_of_the_job_in_a_window_ends_its_last_step(tmp_path: Path) -> None:
    job = History().start(0).steps(range(10), at=0).end(98)
    answer = calculator_of(MemoryLog(job.payloads), 200, tmp_path).get_job_goodput_interval(at(58), at(98))
    assert (answer[0], answer[2], answer[3]) == (100.0, 9, 40.0)


@pytest.mark.parametrize("between", [600.0, None])
def test_a_save_counts_in_the_window_in_which_it_was_made(between: float | None, tmp_path: Path) -> None:
    """With any key that has `time` in its name as the first one of the entry."""
    job = History().start(0).steps(range(10), at=0).end(100)
    save = {**History().save(4, 42, 46).payloads[0]}
    del save["time_between_consecutive_saves_sec"]
    job.payloads.append({"time_between_consecutive_saves_sec": between, **save})
    calculator = calculator_of(MemoryLog(job.payloads), 200, tmp_path)
    for first, last, share in ((40, 50, 40.0), (44, 54, 20.0), (50, 100, 0.0), (0, 40, 0.0)):
        breakdown = calculator.get_job_goodput_interval(at(first), at(last))[1]
        assert breakdown[BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME] == pytest.approx(share)


def test_any_number_of_rolling_windows_reads_the_log_once(tmp_path: Path) -> None:
    log = MemoryLog(History().start(0).steps(range(100), at=0).payloads)
    calculator = calculator_of(log, 1000, tmp_path)
    assert len(calculator.snapshot(window_seconds=[60, 600, 3600, 86400]).windows) == 4
    assert log.entries_read == 101
    log.payloads += History().steps([100, 101], at=1000).payloads
    calculator.snapshot(window_seconds=[60, 600, 3600, 86400])
    assert log.entries_read == 103


# --- Elastic jobs -------------------------------------------------------------------------------------------


def test_every_kind_of_badput_of_an_elastic_job_is_in_every_query(tmp_path: Path) -> None:
    job = History().start(0).wait(5, 15).steps(range(5), at=20).end(70)
    calculator = elastic_calculator(job, 100, tmp_path)
    _, cumulative, _ = calculator.get_job_goodput(True)
    _, excluded, _, excluded_seconds = calculator.get_job_goodput_with_exclusions([(at(10), at(20))], True)
    _, in_window, *_ = calculator.get_job_goodput_interval(at(0), at(10))
    for breakdown in (cumulative, excluded, in_window, calculator.get_job_goodput_details()["badput_time"]):
        assert set(breakdown) == set(BadputType)
    assert excluded_seconds == 10
    assert cumulative[BadputType.ELASTIC_SLICE_DOWN] == pytest.approx(100 * 10 / 70)
    assert excluded[BadputType.ELASTIC_SLICE_DOWN] == pytest.approx(100 * 5 / 60)
    assert in_window[BadputType.ELASTIC_SLICE_DOWN] == 50.0


# --- Nothing is printed -------------------------------------------------------------------------------------


def test_what_goes_wrong_is_logged_and_not_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    (tmp_path / "job_timeline.jsonl").write_text('{"job_name": "job"}\n{"half a li\n')
    (tmp_path / "folder").write_text("no folder")
    cache = GoodputCache("job", str(tmp_path))
    assert cache.get_cached_entries() == [{"job_name": "job"}]
    unusable = GoodputCache("job", str(tmp_path / "folder"))
    unusable.update_cached_entries([{"job_name": "job"}], None)
    assert unusable.get_cached_entries() == []
    assert capfd.readouterr() == ("", "")
    assert len(caplog.records) >= 2
