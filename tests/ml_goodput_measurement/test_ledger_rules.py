"""The rules of the ledger (contract, section 3.10), each with a small life of a job worked out by hand.

Steps last 10 s by default; times are seconds after the history's zero.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from ml_goodput_measurement import goodput
from ml_goodput_measurement._ledger import step_times as job_step_times
from ml_goodput_measurement.partition import AttemptEnd, Bucket

from .accounts import (
    CUSTOM,
    IN_FLIGHT,
    INIT,
    LOAD,
    PREP,
    PRODUCTIVE,
    RECOVERY,
    RESTORE,
    SAVE,
    SECOND_NS,
    SLICE_DOWN,
    STARTUP,
    UNKNOWN,
    WASTED,
    account_of,
    calculator_of,
    moment_ns,
)
from .histories import BASE, History, MemoryLog


def test_the_wall_time_runs_from_the_first_start_to_the_last_end() -> None:
    job = History().start(0).steps(range(3), at=10).end(40).start(50).steps(range(3, 6), at=60).end(95)
    truth = account_of(job, now=10_000)
    assert truth.report.wall_ns == 95 * SECOND_NS
    assert not truth.report.running
    # Step 5 is taken to last 10 s like the others: from 80 to 90; then the job recorded nothing.
    assert truth.seconds == {PRODUCTIVE: 60, RECOVERY: 10, UNKNOWN: 25}


def test_the_wall_time_of_a_running_job_ends_with_the_query() -> None:
    truth = account_of(History().start(0).steps(range(3), at=10), now=500)
    assert truth.report.wall_ns == 500 * SECOND_NS
    assert truth.report.running
    assert truth.seconds == {PRODUCTIVE: 20, IN_FLIGHT: 470, UNKNOWN: 10}


def test_time_that_nothing_accounts_for_is_unknown() -> None:
    truth = account_of(History().start(0).init(5, 8).prepare(10, 14).step(0, at=20).step(1, at=30).end(40))
    assert truth.seconds == {INIT: 3, PREP: 4, UNKNOWN: 13, PRODUCTIVE: 20}


def test_an_attempt_may_start_with_a_repeated_step() -> None:
    """No job start was recorded: recovery cannot be distinguished from work, so the time between is unknown."""
    job = History().start(0).steps(range(10), at=10).steps(range(5, 10), at=200).end(250)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, WASTED: 50, UNKNOWN: 100}
    assert truth.disruptions == 1
    assert [attempt.first_step for attempt in truth.report.attempts] == [0, 5]


def test_recovery_runs_from_the_last_event_to_the_next_start() -> None:
    """The attempt's last event is a custom event's end, well after its last step."""
    job = History().start(0).steps(range(3), at=10).custom(50, 60).start(100).steps(range(3, 6), at=100).end(130)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 60, CUSTOM: 10, RECOVERY: 40, UNKNOWN: 20}


def test_the_same_step_at_another_time_is_a_repeat() -> None:
    job = History().start(0).steps([0, 1, 2], at=10).step(2, at=40).step(3, at=50).end(60)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 40, WASTED: 10, UNKNOWN: 10}
    assert truth.disruptions == 1


def test_the_last_step_of_a_lost_attempt_is_estimated_by_the_median() -> None:
    job = History().start(0).steps([0, 1, 2, 3], at=10).step(4, at=60)  # step 3 took 20 s
    job.start(500).steps([5, 6], at=500).end(520)
    truth = account_of(job)
    # Steps of 10, 10, 10 and 20 s: median 10. The last step of the job is estimated too, until 520.
    assert truth.seconds == {PRODUCTIVE: 80, RECOVERY: 430, UNKNOWN: 10}
    assert truth.report.estimated_ns == 20 * SECOND_NS


def test_the_last_step_of_a_lost_attempt_ends_no_later_than_the_next_event() -> None:
    """A save starts 4 s into it: whatever the step was, it was over."""
    job = History().start(0).steps(range(5), at=10).save(4, 54, 56).start(100).steps(range(5, 8), at=100).end(130)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 74, SAVE: 2, RECOVERY: 44, UNKNOWN: 10}


def test_an_attempt_of_one_step_takes_the_median_of_the_job() -> None:
    job = History().start(0).steps(range(5), at=10).start(100).step(5, at=100).start(200).steps([6, 7], at=200).end(220)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 80, RECOVERY: 40 + 90, UNKNOWN: 10}
    assert truth.disruptions == 2


def test_an_attempt_of_one_step_takes_the_median_of_the_job_as_soon_as_there_is_one(tmp_path: Path) -> None:
    """Asked before any step was complete, its last step seems to last until the next event: 40 s."""
    log = MemoryLog(History().start(0).step(1, 10).init(50, 60).start(70).step(1, 80).payloads)
    calculator = calculator_of(log, now=85, cache_dir=tmp_path)
    assert calculator.report().buckets[WASTED] == 40 * SECOND_NS
    log.payloads += History().steps(range(2, 5), at=90).payloads
    assert calculator.report().buckets[WASTED] == 10 * SECOND_NS


def test_the_last_step_before_a_rollback_is_wasted() -> None:
    job = History().start(0).steps(range(5), at=10).start(100).steps(range(4, 8), at=100).end(140)
    assert account_of(job).seconds == {PRODUCTIVE: 80, WASTED: 10, RECOVERY: 40, UNKNOWN: 10}


def test_the_last_step_of_a_lost_attempt_is_open_until_the_next_one_steps() -> None:
    job = History().start(0).steps(range(5), at=10).start(100)
    truth = account_of(job, now=130)
    assert truth.seconds == {PRODUCTIVE: 40, IN_FLIGHT: 10, RECOVERY: 40, UNKNOWN: 40}
    assert truth.last_step == 3


def test_every_step_that_a_later_attempt_repeats_is_wasted() -> None:
    """Not the next attempt but the one after it goes back to 2."""
    job = (
        History()
        .start(0)
        .steps(range(5), at=0)  # 2, 3, 4 are lost: 30 s
        .start(60)
        .steps(range(5, 8), at=60)  # all lost: 30 s
        .start(100)
        .steps(range(2, 10), at=100)
        .end(180)
    )
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, WASTED: 60, RECOVERY: 20}
    assert truth.disruptions == 2


_OVERLAPPING = [
    ("wait", SLICE_DOWN),
    ("custom", CUSTOM),
    ("restore", RESTORE),
    ("save", SAVE),
    ("init", INIT),
    ("prepare", PREP),
    ("load", LOAD),
]


@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(_OVERLAPPING, 2)), ids=lambda kind: kind[0])
@pytest.mark.parametrize("higher_first", [True, False])
def test_where_two_claim_a_moment_the_higher_one_has_it(
    higher: tuple[str, Bucket], lower: tuple[str, Bucket], higher_first: bool
) -> None:
    """Each lasts 20 s, 10 of them together."""
    job = History().start(0)
    _interval(job, higher[0], *((10, 30) if higher_first else (20, 40)))
    _interval(job, lower[0], *((20, 40) if higher_first else (10, 30)))
    truth = account_of(job.steps(range(5), at=40).end(90))
    assert truth.seconds == {higher[1]: 20, lower[1]: 10, UNKNOWN: 10, PRODUCTIVE: 50}


@pytest.mark.parametrize(("kind", "bucket"), _OVERLAPPING, ids=lambda kind: kind if isinstance(kind, str) else "")
def test_an_interval_inside_a_step_is_not_productive(kind: str, bucket: Bucket) -> None:
    job = History().start(0).steps(range(5), at=0)
    _interval(job, kind, 3, 7)
    assert account_of(job.end(50)).seconds == {PRODUCTIVE: 46, bucket: 4}


@pytest.mark.parametrize(("kind", "bucket"), _OVERLAPPING, ids=lambda kind: kind if isinstance(kind, str) else "")
def test_lost_work_is_lost_whatever_else_it_was(kind: str, bucket: Bucket) -> None:
    job = History().start(0).steps(range(5), at=0)
    _interval(job, kind, 33, 37)
    job.start(60).steps(range(3, 6), at=60)
    assert account_of(job.end(90)).seconds == {PRODUCTIVE: 60, WASTED: 20, RECOVERY: 10}


def test_the_extra_time_of_the_first_step_is_startup() -> None:
    """30 s against a mean of 10 s; and again after the restart, 25 s against 10."""
    job = History().start(0).step(0, at=10).steps(range(1, 5), at=40)
    job.start(100).step(5, at=100).steps(range(6, 10), at=125).end(165)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, STARTUP: 35, RECOVERY: 20, UNKNOWN: 10}


def test_startup_has_lower_precedence_than_all_overlays() -> None:
    """The first step lasted 40 s, 15 of them a custom event; a save is not part of the mean of the others."""
    job = History().start(0).step(0, at=0).custom(5, 20).steps([1, 2], at=40).step(3, at=65).step(4, at=75).end(85)
    job.save(2, 52, 57)  # step 2 takes 15 s, 5 of them the save
    assert account_of(job).seconds == {PRODUCTIVE: 50, STARTUP: 15, CUSTOM: 15, SAVE: 5}


@pytest.mark.parametrize(
    ("first", "last", "productive"),
    [
        pytest.param(2, 8, {PRODUCTIVE: 50, UNKNOWN: 4}, id="before the first step"),
        pytest.param(12, 18, {PRODUCTIVE: 44, UNKNOWN: 10}, id="in a step"),
        pytest.param(17, 23, {PRODUCTIVE: 44, UNKNOWN: 10}, id="across a step record"),
        pytest.param(12, 38, {PRODUCTIVE: 24, UNKNOWN: 10}, id="across three step records"),
        pytest.param(52, 58, {PRODUCTIVE: 42, UNKNOWN: 12}, id="in the last step"),
    ],
)
def test_a_custom_event_counts_wherever_it_lies(first: float, last: float, productive: dict[Bucket, float]) -> None:
    truth = account_of(History().start(0).steps(range(5), at=10).custom(first, last, "eval").end(60))
    assert truth.seconds == {CUSTOM: last - first, **productive}
    assert truth.report.custom == {"EVAL": (last - first) * SECOND_NS}


def test_custom_events_are_reported_by_type() -> None:
    """Types are upper-cased; where two overlap, the moment counts once."""
    job = History().start(0).steps([0, 1], at=0, each=50)
    job.custom(11, 15, "eval").custom(21, 23, "Eval").custom(31, 36, "sdc").custom(34, 38, "eval")
    truth = account_of(job.end(100))
    assert truth.seconds == {PRODUCTIVE: 100 - 13, CUSTOM: 13}
    assert sum(truth.report.custom.values()) == 13 * SECOND_NS
    assert truth.report.custom.keys() == {"EVAL", "SDC"}


def test_a_failed_attempt_before_any_step_keeps_its_initialisation() -> None:
    """There was no disruption yet that it could be the recovery of."""
    job = History().start(0).init(0, 20).start(50).init(50, 70).steps(range(5), at=70).end(120)
    truth = account_of(job)
    assert truth.seconds == {INIT: 40, RECOVERY: 30, PRODUCTIVE: 50}
    assert truth.disruptions == 0


def test_the_attempt_that_has_not_stepped_yet_has_not_failed() -> None:
    job = History().start(0).steps(range(5), at=0).start(80).init(80, 95)
    assert account_of(job, now=100).seconds == {PRODUCTIVE: 40, IN_FLIGHT: 10, RECOVERY: 30, INIT: 15, UNKNOWN: 5}


def test_a_job_end_before_a_new_start_is_a_gap() -> None:
    job = History().start(0).steps(range(5), at=0).end(50).start(70).steps(range(5, 10), at=70).end(120)
    truth = account_of(job)
    assert truth.seconds == {PRODUCTIVE: 100, RECOVERY: 20}
    assert [attempt.ended for attempt in truth.report.attempts] == [AttemptEnd.JOB_END, AttemptEnd.JOB_END]


@pytest.mark.parametrize("seed", range(5))
def test_entries_may_arrive_in_any_order(tmp_path: Path, seed: int) -> None:
    job = (
        History()
        .start(0)
        .init(0, 5)
        .steps(range(10), at=10)
        .save(4, 12, 14)
        .start(130)
        .restore(5, 131, 139)
        .steps(range(5, 10), at=140)
        .custom(142, 152)
        .end(190)
    )
    expected = {PRODUCTIVE: 88, CUSTOM: 10, SAVE: 2, WASTED: 50, RECOVERY: 20, RESTORE: 8, INIT: 5, UNKNOWN: 7}
    first, *entries = job.payloads
    random.Random(seed).shuffle(entries)
    log = MemoryLog([first])
    calculator = calculator_of(log, now=190, cache_dir=tmp_path)
    for entry in entries:
        log.write_cloud_logging_entry(entry)
        calculator.report()
    report = calculator.report()
    assert {bucket: ns / 1e9 for bucket, ns in report.buckets.items() if ns} == expected
    assert report.last_step == 9


def test_of_two_recorders_of_a_job_the_lowest_process_index_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 started half a second late, and records every step late; only a note mentions it."""
    for process_index, late in ((1, 0.5), (0, 0.0)):
        monkeypatch.setenv("JAX_PROCESS_ID", str(process_index))
        recorder = goodput.GoodputRecorder("job", "goodput_job", logging_enabled=True)
        recorder.record_job_start_time(BASE + late)
        for number in range(5):
            recorder.record_step_start_time(number, BASE + late + 10 + 10 * number)
        recorder.record_job_end_time(BASE + late + 60)
    report = goodput.GoodputCalculator("job", "goodput_job", cache_dir=str(tmp_path)).report()
    assert (report.start_ns, report.end_ns) == (moment_ns(0), moment_ns(60))
    assert {bucket: ns for bucket, ns in report.buckets.items() if ns} == {
        PRODUCTIVE: 50 * SECOND_NS,
        UNKNOWN: 10 * SECOND_NS,
    }
    assert not report.disruptions
    assert any("process 1" in note for note in report.notes)


def test_an_unfinished_step_is_marked_as_estimated() -> None:
    """Exact pieces are exact, and estimated pieces are marked."""
    truth = account_of(History().start(0).steps(range(5), at=0).end(50))
    marked = [piece for piece in truth.report.timeline if piece.estimated]
    assert [(piece.start_ns, piece.end_ns) for piece in marked] == [(moment_ns(40), moment_ns(50))]
    assert truth.report.estimated_ns == 10 * SECOND_NS


def _interval(job: History, kind: str, first: float, last: float) -> None:
    if kind in ("save", "restore"):
        getattr(job, kind)(1, first, last)
    else:
        getattr(job, kind)(first, last)


def test_the_last_checkpoint_that_was_started_or_saved_is_known() -> None:
    """Contract section 0: checkpoint progress is used; a save that Orbax reported counts when it has ended."""
    job = History().start(0).steps(range(4), at=10)
    assert account_of(job, now=45).report.attempts[0].last_checkpoint_step is None
    job.add(checkpoint_progress_step=3, checkpoint_progress_started=BASE + 41).steps(range(4, 6), at=50)
    assert account_of(job, now=65).report.attempts[0].last_checkpoint_step == 3
    job.save(5, 65, 68).steps(range(6, 8), at=70)
    job.start(100).steps(range(5, 7), at=110).save(6, 125, 127)
    attempts = account_of(job, now=130).report.attempts
    assert [attempt.last_checkpoint_step for attempt in attempts] == [5, 6]
    assert [attempt.previous_checkpoint_step for attempt in attempts] == [3, 5]


def test_the_checkpoint_before_the_last_one_has_another_step() -> None:
    job = History().start(0).steps(range(8), at=10)
    assert account_of(job, now=85).report.attempts[0].previous_checkpoint_step is None
    job.add(checkpoint_progress_step=3, checkpoint_progress_started=BASE + 41).save(3, 42, 44)
    assert account_of(job, now=85).report.attempts[0].previous_checkpoint_step is None
    job.save(5, 62, 64)
    assert account_of(job, now=85).report.attempts[0].previous_checkpoint_step == 3


def test_a_save_that_is_done_again_counts_again_also_without_a_job_start() -> None:
    job = History().start(0).steps(range(5), at=10).save(4, 52, 57).steps([4], at=200).save(4, 202, 207).end(210)
    truth = account_of(job)
    # Step 4 started at 50 and was repeated at 200: it lasted to the save, the next event; the save after it was kept.
    assert truth.seconds[SAVE] == 10
    assert truth.seconds[WASTED] == 2


def test_hosts_that_report_one_save_within_a_minute_count_once() -> None:
    job = History().start(0).steps(range(10), at=10)
    for host in range(4):
        job.save(3, 45 + host * 0.25, 47 + host * 0.25)
    job.save(3, 106, 108).end(110)  # more than a minute later: another one
    assert account_of(job).seconds[SAVE] == 4


def test_a_query_of_a_finished_job_costs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = History().start(0).steps(range(300), at=10).start(4000).steps(range(300, 600), at=4010).end(9000)
    calculator = calculator_of(MemoryLog(job.payloads), now=9000, cache_dir=tmp_path)
    first = calculator.get_job_goodput()
    computed: list[object] = []
    monkeypatch.setattr(job_step_times, "median_of", computed.append)
    assert calculator.get_job_goodput() == first
    assert computed == []
