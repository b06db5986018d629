"""When several processes write of one job, one of them counts, and the reader is result."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import Bucket, JobReport

from .histories import BASE, JOB, History, Payload

LOG = "goodput_job"
NOW_NS = int((BASE + 1000) * 1e9)


def record(payloads: Iterable[Payload], process_index: int | None) -> None:
    """Write payloads like a process of this index, to a journal of its own."""
    labels = {"job": JOB} if process_index is None else {"job": JOB, "process_index": str(process_index)}
    journal = Journal(LOG, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]), labels=labels)
    for payload in payloads:
        journal.append(payload)
    journal.close()


def report() -> JobReport:
    return GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS).report()


SECOND_COUNTS = "process 1 recorded this job as well; process 0 counts, as the lowest index"
FIRST = History().start(0).steps(range(10), at=10).end(110)
SECOND = History().start(0).steps(range(10), at=11).end(111)
"""The same job as seen a second later by another process."""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_recorders_the_lowest_index_counts_in_whichever_order_they_are_read(order: tuple[int, ...]) -> None:
    for index in order:
        record([FIRST, SECOND][index].payloads, index)
    result = report()
    assert (result.start_ns, result.end_ns) == (int(BASE * 1e9), int((BASE + 110) * 1e9))
    assert (result.steps_kept, len(result.attempts), len(result.disruptions)) == (10, 1, 0)
    assert result.notes == [SECOND_COUNTS]


def test_a_recorder_that_is_found_later_takes_over_if_its_index_is_lower() -> None:
    calculator = GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS)
    record(SECOND.payloads, 1)
    assert (calculator.report().end_ns, calculator.report().notes) == (int((BASE + 111) * 1e9), [])
    record(FIRST.payloads, 0)
    assert (calculator.report().end_ns, calculator.report().notes) == (int((BASE + 110) * 1e9), [SECOND_COUNTS])


def test_three_recorders_are_distinguished_even_if_none_is_the_first() -> None:
    for index in (7, 12, 3):
        record(FIRST.payloads, index)
    assert report().notes == [
        "process 7 recorded this job as well; process 3 counts, as the lowest index",
        "process 12 recorded this job as well; process 3 counts, as the lowest index",
    ]


@pytest.mark.parametrize("label", ["", "first", "-1", "1.0", "9" * 5000, "²"])
def test_an_invalid_index_label_counts_as_the_first_process(label: str) -> None:
    journal = Journal(LOG, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]), labels={"job": JOB, "process_index": label})
    for payload in FIRST.payloads:
        journal.append(payload)
    journal.close()
    record(SECOND.payloads, 1)
    assert report().notes == [SECOND_COUNTS]


@pytest.mark.parametrize("recorder_is_read", ["first", "last"])
@pytest.mark.parametrize("recording_process", [0, 2])
def test_checkpoints_of_all_processes_are_pooled_and_a_save_counts_once(
    recorder_is_read: str, recording_process: int
) -> None:
    """Every host reports the save; it lasted 3, 4 and 5 s on them, and counts as 4."""
    recorders = Recorders(JOB)
    saves = {index: History().save(5, 60, 63 + index).payloads for index in range(3)}
    parts = [(index, saves[index]) for index in range(3)]
    parts.insert(0 if recorder_is_read == "first" else 3, (recording_process, FIRST.payloads))
    for index, payloads in parts:
        recorders.add(Writer(index), payloads)
    summary = recorders.ledger.summary(NOW_NS)
    assert summary is not None
    assert summary.buckets[Bucket.CHECKPOINT_SAVE] == 4 * 10**9
    assert summary.steps_kept == 10
    assert recorders.notes() == []


def test_checkpoints_of_another_process_are_also_read_from_the_journal() -> None:
    record(History().save(5, 60, 64).payloads, 1)
    record(FIRST.payloads, 0)
    record(History().save(5, 60, 66).payloads, 3)
    result = report()
    assert result.buckets[Bucket.CHECKPOINT_SAVE] == 5 * 10**9
    assert result.notes == []


def test_dropped_and_malformed_entries_are_reported() -> None:
    spoilt = History().add(job_start_time="soon").add(step_count=None, step_start_time=BASE).payloads
    record([*FIRST.payloads, {"job_name": JOB, "lost_entries": {"disk_full": 7}}, *spoilt], None)
    record([{"job_name": JOB, "lost_entries": {"disk_full": 1, "io_error": 2}}], 4)
    assert report().notes == [
        "8 entries were lost while recording: disk_full",
        "2 entries were lost while recording: io_error",
        "2 entries were passed over: malformed entry",
    ]


def test_the_journals_own_report_of_losses_reaches_the_notes() -> None:
    """A journal that can write again writes this: one entry of the job, with its losses."""
    recorders = Recorders(JOB)
    report = {"job_name": JOB, "lost_entries": {"no_folder": 3}, "lost_by": "host-1-2-0.100000000007"}
    recorders.add(Writer(0), [*FIRST.payloads, report])
    recorders.add(Writer(0), [report])  # From the journal, and from the cloud.
    assert recorders.notes() == ["3 entries were lost while recording: no_folder"]
    recorders.add(Writer(0), [{**report, "lost_by": "host-1-2-0.100000000009"}])
    assert recorders.notes() == ["6 entries were lost while recording: no_folder"]


def test_the_compilations_of_all_attempts_are_one_note() -> None:
    recorders = Recorders(JOB)
    first = {"job_name": JOB, "compiled_by": "host 1", "compiled_functions": 3, "compiled_seconds": 1.5}
    first |= {"compilation_cache_hits": 0, "compilation_cache_misses": 0}
    recorders.add(Writer(0), [*FIRST.payloads, first])
    assert recorders.notes() == ["JAX compiled 3 functions in 1.5 s"]
    alone = Recorders(JOB)
    alone.add(Writer(0), [*FIRST.payloads, {**first, "compiled_functions": 1}])
    assert alone.notes() == ["JAX compiled 1 function in 1.5 s"]
    second = {**first, "compiled_by": "host 2", "compiled_seconds": 0.25, "compilation_cache_hits": 2}
    recorders.add(Writer(0), [second, {**first, "compiled_functions": 4, "compilation_cache_misses": 4}])
    assert recorders.notes() == ["JAX compiled 7 functions in 1.8 s; the compilation cache had 2 of 6"]


# --- Several writers ----------------------------------------------------------------------------------------------


def steady(start: float, first: int, last: int, each: float = 10.0, job_end: bool = False) -> History:
    """An attempt that starts at a second and makes steps from 10 s after it on."""
    life = History().start(start).steps(range(first, last), at=start + 10, each=each)
    return life.end(start + 10 + (last - first) * each) if job_end else life


def productive_seconds(report: JobReport) -> float:
    return report.buckets[Bucket.PRODUCTIVE] / 1e9


@pytest.mark.parametrize("index", [None, 0, 3])
def test_recorders_with_one_process_index_are_not_merged(index: int | None) -> None:
    """Three slices, each of which counts its workers from 0, or processes that know no index."""
    for late in (0.0, 0.4, 1.3):
        record(steady(late, 0, 50, job_end=True).payloads, index)
    result = report()
    assert (len(result.attempts), len(result.disruptions), result.steps_kept) == (1, 0, 50)
    assert result.goodput_percent > 95
    [note] = result.notes
    assert note.startswith(f"2 more recorders with process index {index or 0} recorded this job at the same time: ")
    assert "Enable logging in one process only" in note


def test_a_restart_of_three_processes_without_an_index_is_one_attempt() -> None:
    for start, first in ((0.0, 0), (300.0, 6)):
        for late in (0.0, 0.4, 1.3):
            record(steady(start + late, first, first + 10).payloads, None)
    result = report()
    assert (len(result.attempts), len(result.disruptions)) == (2, 1)
    assert result.buckets[Bucket.WASTED_PROGRESS] > 0


def test_processes_that_start_minutes_apart_before_the_first_step_are_one_attempt() -> None:
    """The first step waits for all."""
    record(History().start(0).steps(range(10), at=300).end(400).payloads, None)
    record(History().start(250).steps(range(10), at=300.2).end(400.2).payloads, None)
    result = report()
    assert (len(result.attempts), result.start_ns, result.end_ns) == (1, int(BASE * 1e9), int((BASE + 400) * 1e9))


def test_a_recorder_that_joins_late_and_keeps_pace_is_of_the_same_attempt() -> None:
    """A slice that was added to an elastic job, with a worker that also has index 0."""
    record(steady(0, 0, 200, job_end=True).payloads, 0)
    record(History().start(600).steps(range(65, 200), at=660, each=10).end(2010).payloads, 0)
    result = report()
    assert (len(result.attempts), len(result.disruptions), result.steps_kept) == (1, 0, 200)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_where_the_process_that_counts_stops_the_next_one_of_the_attempt_counts(order: tuple[int, ...]) -> None:
    lives = [steady(0, 0, 50), steady(0.4, 0, 100, job_end=True)]
    calculator = GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS + 10**12)
    for index in order:
        record(lives[index].payloads, index)
        calculator.report()
    result = calculator.report()
    assert result == GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS + 10**12).report()
    assert (len(result.attempts), len(result.disruptions), result.steps_kept) == (1, 0, 100)
    assert (result.running, result.end_ns) == (False, int((BASE + 1010.4) * 1e9))
    assert sum(result.buckets.values()) == result.wall_ns
    assert any("recorded nothing after step 49" in note for note in result.notes)


def test_a_process_that_only_starts_and_ends_the_job_amid_it_does_not_count() -> None:
    record(steady(0, 0, 50, job_end=True).payloads, None)
    record(History().start(200).end(230).payloads, None)
    result = report()
    assert (len(result.attempts), len(result.disruptions), result.steps_kept) == (1, 0, 50)
    assert not any("continued" in note for note in result.notes)


def test_an_old_process_that_goes_on_recording_is_one_disruption() -> None:
    """It makes 50 steps after the job was restarted; the time since then is the new attempt's."""
    record([*steady(0, 0, 60).payloads], None)
    record(steady(105, 5, 70).payloads, None)
    result = report()
    assert (len(result.attempts), len(result.disruptions)) == (2, 1)
    assert result.attempts[1].start_ns == int((BASE + 105) * 1e9)
    assert result.disruptions[0].steps_lost == 5
    assert sum(result.buckets.values()) == result.wall_ns
    [note] = result.notes
    assert "went on recording after the next attempt started, for up to 495 s" in note


def test_an_end_that_an_old_process_records_does_not_end_the_new_attempt() -> None:
    record([*steady(0, 0, 10).payloads, *History().end(400).payloads], None)
    record(steady(300, 5, 30).payloads, None)
    result = report()
    assert (result.running, len(result.attempts), len(result.disruptions)) == (True, 2, 1)


def test_a_process_that_records_in_between_does_not_replace_the_job() -> None:
    """A user runs the program for a minute, under the name of a job that runs for hours."""
    record(steady(0, 0, 90).payloads, None)
    record(steady(300, 0, 5).payloads, None)
    result = report()
    assert (len(result.attempts), len(result.disruptions), result.steps_kept) == (1, 0, 89)


def test_which_process_records_may_change_between_attempts() -> None:
    record(steady(0, 0, 80).payloads, 1)
    record(steady(900, 80, 85, job_end=True).payloads, 0)
    result = report()
    assert (result.start_ns, result.end_ns) == (int(BASE * 1e9), int((BASE + 960) * 1e9))
    assert (len(result.attempts), result.steps_kept, len(result.disruptions)) == (2, 85, 1)
    assert result.notes == []


def test_the_schedulers_count_of_restarts_distinguishes_attempts() -> None:
    """They start together by their clocks; one of them remained from the previous attempt."""
    for attempt, life in (("0", steady(0, 0, 10)), ("1", steady(20, 0, 10))):
        labels = {"job": JOB, "process_index": "0", "attempt": attempt}
        journal = Journal(LOG, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]), labels=labels)
        for payload in life.payloads:
            journal.append(payload)
        journal.close()
    assert len(report().attempts) == 2


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_attempts_that_start_at_the_same_moment_are_the_same_in_any_order(order: tuple[int, ...]) -> None:
    lives = [
        History().init(0, 0.5).steps(range(6), at=0.5, each=0.5),
        History().init(0.25, 0.75).steps([7], at=5.5),
        History().init(0.25, 0.75).steps(range(8), at=0.75, each=0.5),
        History().steps([15, 17], at=59.75, each=2),
    ]
    writers = [Writer(2, "host-0", "0"), Writer(0, "host-3", "0"), Writer(0, "", "1"), Writer(0, "host-2")]

    def writers_after(numbers: Iterable[int]) -> list[Writer]:
        recorders = Recorders(JOB)
        for number in numbers:
            for payload in lives[number].payloads:
                recorders.add(writers[number], [payload])
                assert recorders.ledger.facts
        return recorders.writers()

    assert writers_after(order) == writers_after(range(4))


def test_a_launcher_that_records_start_and_end_completes_the_program_that_it_starts() -> None:
    record(History().start(0).end(120).payloads, None)
    record(History().init(5, 8).steps(range(10), at=10).payloads, None)
    result = report()
    assert (result.start_ns, result.end_ns, result.running) == (int(BASE * 1e9), int((BASE + 120) * 1e9), False)
    assert (len(result.attempts), result.steps_kept, result.notes) == (1, 10, [])
    assert result.buckets[Bucket.TPU_INITIALIZATION] == 3 * 10**9


def test_entries_without_a_writer_are_of_one_writer() -> None:
    """The public package writes such entries, from several processes one after the other."""
    recorders = Recorders(JOB)
    for start, first in ((0, 0), (300, 5), (600, 8)):
        recorders.add(Writer(), steady(start, first, first + 10).payloads)
    summary = recorders.ledger.summary(NOW_NS)
    assert summary is not None
    assert (len(recorders.ledger.attempts(NOW_NS)), summary.disruptions) == (3, 2)
    assert recorders.notes() == []


TRAINER = """
import sys, time
from ml_goodput_measurement import goodput
recorder = goodput.GoodputRecorder("job", "goodput_job", logging_enabled=True)
recorder.record_job_start_time()
for step in range(60):
    recorder.record_step_start_time(step)
    time.sleep(0.03)
recorder.record_job_end_time()
"""


def test_three_slices_with_workers_that_count_from_zero_are_one_job() -> None:
    environment = {**os.environ, "TPU_WORKER_ID": "0", "ML_DIAGNOSTICS_BACKEND": "local"}
    trainers = [subprocess.Popen([sys.executable, "-c", TRAINER], env=environment) for _ in range(3)]
    assert [trainer.wait(timeout=60) for trainer in trainers] == [0, 0, 0]
    result = GoodputCalculator(JOB, LOG).report()
    assert (len(result.attempts), len(result.disruptions), result.steps_kept) == (1, 0, 60)
    assert any("2 more recorders with process index 0" in note for note in result.notes)
