"""Worked truths: every scenario in which the reference is wrong, and where each second went.

Each names the line of the contract's section 4 that it proves. Steps last 10 s by default,
times are seconds after the history's zero, and the arithmetic is done by hand.
"""

from __future__ import annotations

import datetime
import logging
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ml_goodput_measurement import goodput

from .accounts import (
    IN_FLIGHT,
    INIT,
    LOAD,
    PRODUCTIVE,
    RECOVERY,
    SAVE,
    SECOND_NS,
    SLICE_DOWN,
    UNKNOWN,
    WASTED,
    account_of,
    calculator_of,
    moment_ns,
)
from .histories import BASE, Cursor, History, MemoryLog, Payload

DAY = 86_400.0


# --- Section 4.1: the disruption scenarios --------------------------------------------------------------


def test_an_outage_with_an_exact_resume_is_a_disruption_and_not_productive() -> None:
    """Steps 0 to 9, 1000 s of outage, resumed at 10 from an emergency checkpoint: contract 4.1 line 1, B3."""
    job = History().start(0).steps(range(10), at=10).start(1110).steps(range(10, 20), at=1120).end(1220)
    truth = account_of(job)
    # 10 s before the first step of each attempt are unknown; step 9 ended at 110 (estimated).
    assert truth.seconds == {PRODUCTIVE: 200, RECOVERY: 1000, UNKNOWN: 20}
    assert truth.disruptions == 1
    assert truth.last_step == 19


def test_a_restart_from_step_0_wastes_everything() -> None:
    """Contract 4.1 line 2, B6."""
    job = History().start(0).steps(range(10), at=10).start(130).steps(range(10), at=140).end(240)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, WASTED: 100, RECOVERY: 20, UNKNOWN: 20}
    assert truth.disruptions == 1
    assert truth.report.disruptions[0].steps_lost == 10
    assert truth.last_step == 9


def test_a_rollback_wastes_the_step_in_flight_too() -> None:
    """Crash in step 9, restarted from 5: steps 5 to 9 are lost, 50 s; contract 4.1 line 3."""
    job = History().start(0).steps(range(10), at=10).start(130).steps(range(5, 10), at=140).end(190)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, WASTED: 50, RECOVERY: 20, UNKNOWN: 20}
    assert truth.disruptions == 1


def test_a_second_rollback_below_the_first_is_a_disruption_of_its_own() -> None:
    """Contract 4.1 line 4."""
    job = (
        History()
        .start(0)
        .steps(range(10), at=10)  # 0 to 2 stay: 30 s; 3 to 9 are repeated by the third attempt: 70 s
        .start(130)  # recovery from 110
        .steps([5, 6, 7], at=140)  # all repeated: 30 s, to 170
        .start(200)  # recovery from 170
        .steps(range(3, 10), at=210)  # 70 s
        .end(280)
    )
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, WASTED: 100, RECOVERY: 50, UNKNOWN: 30}
    assert truth.disruptions == 2
    assert [lost.steps_lost for lost in truth.report.disruptions] == [5, 5]
    assert truth.last_step == 9


def test_a_crash_loop_is_one_recovery() -> None:
    """Two attempts fail while they initialise: counted once, as recovery; contract 4.1 line 5, B12."""
    job = (
        History()
        .start(0)
        .init(0, 20)
        .steps(range(10), at=20)  # to 120
        .start(150)
        .init(150, 170)
        .start(200)
        .init(200, 220)
        .start(250)
        .init(250, 270)
        .steps(range(10, 20), at=270)
        .end(370)
    )
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 200, INIT: 40, RECOVERY: 130}
    assert truth.disruptions == 1
    assert truth.report.disruptions[0].failed_attempts == 2


def test_a_job_resumed_after_its_recorded_end_is_running() -> None:
    """Contract 4.1 line 6, B7."""
    job = History().start(0).steps(range(10), at=10).end(110).start(200).steps(range(10, 20), at=210)
    truth = account_of(job, now=305)
    assert truth.report.running
    assert truth.seconds == {PRODUCTIVE: 190, RECOVERY: 90, UNKNOWN: 20, IN_FLIGHT: 5}
    assert truth.last_step == 18


@pytest.mark.parametrize("resumed", [2, 20, 200])
def test_elapsed_time_and_goodput_go_on_after_a_recorded_end(resumed: int) -> None:
    """B7: neither freezes at the first job end, however much follows it."""
    job = History().start(0).steps(range(10), at=10).end(110).start(120).steps(range(10, 10 + resumed), at=130)
    truth = account_of(job.end(130 + 10 * resumed))
    assert truth.seconds == {PRODUCTIVE: 100 + 10 * resumed, RECOVERY: 10, UNKNOWN: 20}
    assert truth.last_step == 9 + resumed


def test_each_attempt_waits_for_one_data_load() -> None:
    """A load of 1 s before each step, one restart: two loads held it up; contract 4.1 line 7, B13."""
    job = History().start(0)
    for number in range(5):
        job.load(9 + 10 * number, 10 + 10 * number).step(number, at=10 + 10 * number)
    job.start(100)
    for number in range(5, 10):
        job.load(59 + 10 * number, 60 + 10 * number).step(number, at=60 + 10 * number)
    truth = account_of(job.end(160))
    assert truth.seconds == {PRODUCTIVE: 100, LOAD: 2, RECOVERY: 40, UNKNOWN: 18}
    assert truth.report.data_loading_async_ns == 8 * SECOND_NS


def input_bound(*, ends: bool) -> History:
    """Steps of 2 s, and 8 s to load the batch of each; killed after step 4, and resumed 20 s later."""
    job = History().start(0)
    for number in range(10):
        at = 10 * number + (20 if number >= 5 else 0)
        if number == 5:
            job.start(at)
        if ends and number % 5:
            job.load_after(number - 1, at, at + 8)
        else:
            job.load(at, at + 8)
        job.step(number, at + 8)
    return (job.step_end(9, 120) if ends else job).end(120)


def test_training_waits_for_each_load_after_the_recorded_end_of_a_step() -> None:
    truth = account_of(input_bound(ends=True))
    # The end of step 4 is not recorded: it is estimated by the median time from start to start, which is 10 s.
    assert truth.seconds == {PRODUCTIVE: 28, LOAD: 80, RECOVERY: 12}
    assert truth.report.data_loading_async_ns == 0
    [disruption] = truth.report.disruptions
    assert disruption.data_loading_ns == 8 * SECOND_NS


def test_without_recorded_ends_of_steps_training_waits_for_the_first_load_of_each_attempt() -> None:
    truth = account_of(input_bound(ends=False))
    assert truth.seconds[LOAD] == 16
    assert truth.report.data_loading_async_ns == 64 * SECOND_NS


def test_a_load_that_goes_on_beside_the_next_step_holds_training_up_only_before_it() -> None:
    """Steps of 10 s that end after 8 s; a load from 17 to 24 s lies in both."""
    job = History().start(0)
    for number in range(3):
        job.step(number, 10 * number).step_end(number, 10 * number + 8)
    truth = account_of(job.load(1, 2).load(17, 24).end(30))
    assert truth.seconds == {PRODUCTIVE: 23, LOAD: 3, UNKNOWN: 4}
    assert truth.report.data_loading_async_ns == 5 * SECOND_NS


def test_steps_shorter_than_a_second_have_an_ideal_time_and_deviations() -> None:
    """Contract 4.1 line 8, B18."""
    job = History().start(0).steps(range(8), at=10, each=0.5).steps(range(8, 12), at=14.3, each=0.5).end(16.3)
    truth = account_of(job)
    # Step 7 took 0.8 s; median 0.5 and MAD 0, so the ideal is the mean of those that took no more than 0.5 s.
    assert truth.report.ideal_step_seconds == pytest.approx(0.5, abs=1e-9)
    assert truth.details["ideal_step_time"] == pytest.approx(0.5, abs=1e-9)
    deviations = truth.details["step_time_deviation"]
    assert deviations[7] == pytest.approx(0.3, abs=1e-9)
    assert deviations[6] == pytest.approx(0.0, abs=1e-9)


def test_a_job_without_a_recorded_start_gets_a_partial_answer() -> None:
    """Its wall time starts with the first event; contract 4.1 line 9."""
    truth = account_of(History().steps(range(10), at=10).end(110))
    assert truth.seconds == {PRODUCTIVE: 100}
    assert truth.report.wall_ns == 100 * SECOND_NS
    assert truth.last_step == 9


# --- Section 4.2: the other defects ---------------------------------------------------------------------


def test_a_second_calculator_reads_entries_after_the_query_of_the_first(tmp_path: Path) -> None:
    """They share their saved state, not their blindness: B1."""
    _record(History().start(0).steps(range(10), at=10))
    first = _of_journal(now=105, cache_dir=tmp_path)
    assert first.get_job_goodput().last_step == 8
    first.save_state()

    _record(History().steps(range(10, 20), at=110))
    second = _of_journal(now=205, cache_dir=tmp_path)
    assert second.get_job_goodput().last_step == 18
    assert second.get_job_goodput_details()["disruption_count"] == 0


def test_calculators_that_start_cold_together_count_nothing_twice(tmp_path: Path) -> None:
    """B1: two that raced made twice the entries and 26 disruptions out of none."""
    _record(History().start(0).steps(range(50), at=10))
    calculators = [_of_journal(now=2010, cache_dir=tmp_path) for _ in range(3)]
    for more in range(50, 200, 50):
        for calculator in calculators:
            assert calculator.get_job_goodput().last_step == more - 2
            assert calculator.get_job_goodput_details()["disruption_count"] == 0
            calculator.save_state()
        _record(History().steps(range(more, more + 50), at=10 + 10 * more))
    assert _of_journal(now=2010, cache_dir=tmp_path).get_job_goodput().last_step == 198


def test_a_query_costs_only_the_new_entries(tmp_path: Path) -> None:
    """Ten new steps after 16,000 cost as many calls as after 1,000: B4."""
    counts = []
    for steps in (1_000, 16_000):
        log = MemoryLog(History().start(0).steps(range(steps), at=10).payloads)
        calculator = calculator_of(log, now=10 + 10 * (steps + 100), cache_dir=tmp_path / str(steps))
        calculator.get_job_goodput(include_badput_breakdown=True)
        log.payloads += History().steps(range(steps, steps + 10), at=10 + 10 * steps).payloads
        log.entries_read = 0
        counts.append(_calls(lambda: calculator.get_job_goodput(include_badput_breakdown=True)))  # noqa: B023
        assert log.entries_read == 10
    assert counts[1] < 1.5 * counts[0]


@pytest.mark.timing
def test_the_time_of_a_query_does_not_grow_with_the_job(tmp_path: Path) -> None:
    """B4 again, by the clock, because a call into C may hide a walk over all steps."""
    quickest = []
    for steps in (2_000, 64_000):
        log = MemoryLog(History().start(0).steps(range(steps), at=10).payloads)
        calculator = calculator_of(log, now=10 + 10 * (steps + 1_000), cache_dir=tmp_path / str(steps))
        calculator.get_job_goodput(include_badput_breakdown=True)
        times = []
        for tick in range(steps, steps + 200, 10):
            log.payloads += History().steps(range(tick, tick + 10), at=10 + 10 * tick).payloads
            started = time.perf_counter()
            calculator.get_job_goodput(include_badput_breakdown=True)
            times.append(time.perf_counter() - started)
        quickest.append(min(times))
    assert quickest[1] < 5 * quickest[0]


def test_custom_events_cost_what_they_are_and_not_steps_times_events(tmp_path: Path) -> None:
    """B4: twice the steps with twice the events is twice the work."""
    counts = []
    for steps in (500, 2_000):
        job = History().start(0)
        for number in range(steps):
            job.step(number, at=10 + 10 * number)
            if number % 5 == 0:
                job.custom(12 + 10 * number, 13 + 10 * number)
        calculator = calculator_of(MemoryLog(job.payloads), now=10 + 10 * steps, cache_dir=tmp_path / str(steps))
        counts.append(_calls(lambda: calculator.get_job_goodput(include_badput_breakdown=True)))  # noqa: B023
    assert counts[1] < 5 * counts[0]


def test_a_job_of_sixty_days_is_reported_in_full(tmp_path: Path) -> None:
    """B5: the reference reads the last seven days."""
    job = History().start(0).steps(range(60), at=0, each=DAY).end(60 * DAY)
    calculator = calculator_of(_DatedLog(job.payloads), now=60 * DAY, cache_dir=tmp_path)
    assert calculator.get_job_goodput() == pytest.approx(100.0)
    assert calculator.get_job_goodput().last_step == 59


@pytest.mark.parametrize(
    "broken",
    [
        {"directory": None},
        {"directory": ...},
        {"checkpoint_manager_blocking_duration_secs": None},
        {"checkpoint_manager_blocking_start_time": None},
        {"checkpoint_manager_blocking_duration_secs": "soon"},
        {"checkpoint_manager_blocking_duration_secs": -1.0},
        {"checkpoint_manager_blocking_duration_secs": float("nan")},
        {"checkpoint_manager_blocking_start_time": float("inf")},
        {"checkpoint_manager_blocking_start_time": [1]},
        {"step": None},
        {"event_type": "save", "only": "that"},
    ],
    ids=lambda broken: "-".join(f"{key}={value}" for key, value in broken.items()),
)
def test_a_malformed_save_spoils_no_query(broken: dict[str, object]) -> None:
    """B8: one such entry ended every query of the reference."""
    job = History().start(0).steps(range(10), at=10).save(3, 12, 14).save(6, 15, 17)
    job.payloads[-1] |= broken
    if broken.get("directory") is ...:
        del job.payloads[-1]["directory"]
    if "only" in broken:
        job.payloads[-1] = {"job_name": "job", **broken}
    truth = account_of(job.end(110))
    # Without a directory, or with the start of its first part, it still has the time in which training waited.
    has_time = "directory" in broken or broken == {"checkpoint_manager_blocking_start_time": None}
    saved = 4 if has_time else 2
    assert truth.seconds == {PRODUCTIVE: 100 - saved, SAVE: saved, UNKNOWN: 10}


@pytest.mark.parametrize("retention", [7 * 24 * 60 * 60, 7 * 24 * 60 * 60.0, datetime.timedelta(days=7), None])
def test_the_retention_period_may_be_seconds_or_a_timedelta(
    tmp_path: Path, retention: datetime.timedelta | float | None
) -> None:
    """B9: the reference's own README passes seconds, and its query dies of them."""
    log = MemoryLog(History().start(0).steps(range(10), at=10).end(110).payloads)
    calculator = goodput.GoodputCalculator(
        "job", "goodput_job", log, max_logs_retention_period=retention, cache_dir=str(tmp_path)
    )
    assert calculator.get_job_goodput().last_step == 9


def test_a_late_entry_is_included(tmp_path: Path) -> None:
    """A save of the first day arrives after a hundred queries: B11."""
    job = History().start(0).steps(range(10), at=10)
    log = MemoryLog(job.payloads)
    calculator = calculator_of(log, now=205, cache_dir=tmp_path)
    for number in range(10, 20):
        log.payloads += History().step(number, at=10 + 10 * number).payloads
        calculator.get_job_goodput()
    log.payloads += History().save(0, 12, 16).payloads
    calculator.get_job_goodput()
    assert calculator.report().buckets[SAVE] == 4 * SECOND_NS
    assert calculator.report().buckets[PRODUCTIVE] == (190 - 4) * SECOND_NS


def test_a_late_step_closes_its_gap(tmp_path: Path) -> None:
    """B11: and it is not a disruption."""
    job = History().start(0).steps(range(10), at=10)
    late = job.payloads.pop(5)
    log = MemoryLog(job.payloads)
    calculator = calculator_of(log, now=110, cache_dir=tmp_path)
    assert calculator.get_job_goodput().last_step == 8
    assert calculator.report().buckets[PRODUCTIVE] == 70 * SECOND_NS
    log.write_cloud_logging_entry(late)
    assert calculator.get_job_goodput().last_step == 8
    assert calculator.report().buckets[PRODUCTIVE] == 90 * SECOND_NS
    assert len(calculator.report().disruptions) == 0


def test_an_entry_delivered_twice_is_one_event() -> None:
    """B11: the reference calls it a disruption."""
    job = History().start(0).steps(range(10), at=10).save(5, 65, 67).custom(22, 24).load(5, 6).end(110)
    once = account_of(job)
    job.payloads = [entry for entry in job.payloads for _ in range(2)]
    twice = account_of(job)
    assert twice.seconds == once.seconds
    assert twice.disruptions == 0


def test_an_elastic_wait_inside_a_step_is_not_productive_too() -> None:
    """B12: 20 s of waiting inside a step made 170 s out of 160."""
    job = History().start(0).steps(range(5), at=10).wait(62, 82).steps(range(5, 10), at=80).end(130)
    # Step 4 runs from 50 to 80, step 5 from 80 to 90; the wait takes 18 s of the one and 2 s of the other.
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, SLICE_DOWN: 20, UNKNOWN: 10}


def test_a_save_in_lost_work_is_lost_work() -> None:
    """B12: the reference takes it off the productive time that it never was."""
    job = (
        History()
        .start(0)
        .steps(range(10), at=10)
        .save(3, 12, 14)  # in step 0, which is kept
        .save(7, 82, 86)  # in step 7, which is lost
        .start(130)
        .steps(range(5, 10), at=140)
        .end(190)
    )
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 98, SAVE: 2, WASTED: 50, RECOVERY: 20, UNKNOWN: 20}


def test_a_save_that_is_made_again_after_a_rollback_counts_again() -> None:
    """Step 4 is saved twice, and twice the training stood still; the reference takes their mean as one save."""
    job = (
        History()
        .start(0)
        .steps(range(4, 10), at=10)  # to 70
        .save(4, 12, 14)  # in step 4, which is kept
        .start(90)
        .steps(range(5, 10), at=100)
        .save(4, 102, 106)  # in step 5
        .end(150)
    )
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 54, SAVE: 6, WASTED: 50, RECOVERY: 20, UNKNOWN: 20}


@pytest.mark.timing
def test_nothing_waits_for_a_cloud_that_is_not_there(tmp_path: Path) -> None:
    """B20: the metadata server is a black hole, and constructing both ends takes no time."""
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        address = f"127.0.0.1:{black_hole.getsockname()[1]}"
        script = textwrap.dedent(
            """
            import time
            from ml_goodput_measurement import goodput
            goodput.GoodputRecorder, goodput.GoodputCalculator
            started = time.perf_counter()
            recorder = goodput.GoodputRecorder("job", "goodput_job", True, background_grace_period_s=0.1)
            recorder.record_job_start_time()
            recorder.record_step_start_time(0)
            calculator = goodput.GoodputCalculator("job", "goodput_job")
            print(time.perf_counter() - started)
            """
        )
        environment = {
            "HOME": str(tmp_path),
            "ML_DIAGNOSTICS_DIR": str(tmp_path / "diagnostics"),
            "GCE_METADATA_HOST": address,
            "GCE_METADATA_IP": address,
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert float(done.stdout) < 0.5  # One probe of the metadata server alone would wait longer.


def test_switched_off_logging_does_not_mute_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B22: recording is data, not log lines."""
    logging.disable(logging.CRITICAL)
    try:
        _record(History().start(0).steps(range(10), at=10))
        result = _of_journal(now=110, cache_dir=tmp_path).get_job_goodput()
    finally:
        logging.disable(logging.NOTSET)
    assert result.last_step == 8
    assert result.goodput == pytest.approx(100 * 90 / 110)


def test_a_naive_datetime_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """B23: whatever the machine's zone, for the recorder as for the calculator."""
    log = MemoryLog()
    recorder = goodput.GoodputRecorder("job", "goodput_job", True, log)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        recorder.record_job_start_time(datetime.datetime.fromtimestamp(BASE))
        recorder.record_step_start_time(0, datetime.datetime.fromtimestamp(BASE + 10))
        recorder.record_step_start_time(1, _utc(20))
    time.tzset()
    assert log.payloads == History().start(0).step(0, at=10).step(1, at=20).payloads


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 100, b"half"])
def test_saved_state_that_is_damaged_is_read_again_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: bytes
) -> None:
    """B26: the reference prints, and drops the rest of its file."""
    _record(History().start(0).steps(range(10), at=10))
    calculator = _of_journal(now=110, cache_dir=tmp_path)
    calculator.get_job_goodput()
    calculator.save_state()
    saved = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert saved
    for file in saved:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] if damage == b"half" else damage)
    assert _of_journal(now=110, cache_dir=tmp_path).get_job_goodput().last_step == 8
    assert capfd.readouterr().out == ""


def test_the_last_step_does_not_fall_back_with_each_attempt() -> None:
    """B27: the new attempt has only started its first step; 0 to 9 are done and kept."""
    truth = account_of(History().start(0).steps(range(10), at=10).start(130).step(10, at=140), now=143)
    assert truth.last_step == 9
    assert truth.seconds == {PRODUCTIVE: 100, RECOVERY: 20, UNKNOWN: 20, IN_FLIGHT: 3}


# --- Helpers --------------------------------------------------------------------------------------------


class _DatedLog(MemoryLog):
    """A log that, like the real one, gives nothing from before `start_time`."""

    def read_cloud_logging_entries(
        self,
        start_time: datetime.datetime | None = None,
        end_time: datetime.datetime | None = None,
        last_entry_info: Cursor | None = None,
    ) -> tuple[list[Payload], Cursor]:
        new, cursor = super().read_cloud_logging_entries(start_time, end_time, last_entry_info)
        if start_time is None:
            return new, cursor
        earliest = start_time.timestamp()
        return [entry for entry in new if _event_time(entry) >= earliest], cursor


def _event_time(entry: dict[str, object]) -> float:
    return next(value for key, value in entry.items() if key.endswith("_time") and isinstance(value, float))


def _calls(function: Callable[[], object]) -> int:
    """How many calls a function makes, into Python and into C: work, without the noise of a clock."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def _record(history: History) -> None:
    """Write a history of job starts and steps to the journal, like a trainer."""
    recorder = goodput.GoodputRecorder("job", "goodput_job", logging_enabled=True)
    for entry in history.payloads:
        if "step_count" in entry:
            recorder.record_step_start_time(entry["step_count"], entry["step_start_time"])
        else:
            recorder.record_job_start_time(entry["job_start_time"])
    recorder.flush()


def _of_journal(now: float, cache_dir: Path) -> goodput.GoodputCalculator:
    return goodput.GoodputCalculator("job", "goodput_job", cache_dir=str(cache_dir), _clock_ns=lambda: moment_ns(now))


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE + at, datetime.timezone.utc)
