"""When several processes write of one job, one of them counts, and the reader is told."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement.calculator import GoodputCalculator
from ml_goodput_measurement.partition import Bucket, JobReport
from ml_goodput_measurement.recorders import Recorders

from .histories import BASE, JOB, History, Payload

LOG = "goodput_job"
NOW_NS = int((BASE + 1000) * 1e9)


def record(payloads: Iterable[Payload], process_index: int | None) -> None:
    """Writes payloads as a process of this index does, to a journal of its own."""
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
    told = report()
    assert (told.start_ns, told.end_ns) == (int(BASE * 1e9), int((BASE + 110) * 1e9))
    assert (told.steps_kept, len(told.attempts), len(told.disruptions)) == (10, 1, 0)
    assert told.notes == [SECOND_COUNTS]


def test_a_recorder_that_is_found_later_takes_over_if_its_index_is_lower() -> None:
    calculator = GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS)
    record(SECOND.payloads, 1)
    assert (calculator.report().end_ns, calculator.report().notes) == (int((BASE + 111) * 1e9), [])
    record(FIRST.payloads, 0)
    assert (calculator.report().end_ns, calculator.report().notes) == (int((BASE + 110) * 1e9), [SECOND_COUNTS])


def test_three_recorders_are_told_apart_also_when_none_is_the_first() -> None:
    for index in (7, 12, 3):
        record(FIRST.payloads, index)
    assert report().notes == [
        "process 7 recorded this job as well; process 3 counts, as the lowest index",
        "process 12 recorded this job as well; process 3 counts, as the lowest index",
    ]


@pytest.mark.parametrize("label", ["", "first", "-1", "1.0", "9" * 5000, "²"])
def test_a_label_that_is_no_index_is_taken_for_the_first_process(label: str) -> None:
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
        recorders.add(index, payloads)
    summary = recorders.ledger.summary(NOW_NS)
    assert summary is not None
    assert summary.buckets[Bucket.CHECKPOINT_SAVE] == 4 * 10**9
    assert summary.steps_kept == 10
    assert recorders.notes() == []


def test_checkpoints_of_another_process_come_through_the_journal_too() -> None:
    record(History().save(5, 60, 64).payloads, 1)
    record(FIRST.payloads, 0)
    record(History().save(5, 60, 66).payloads, 3)
    told = report()
    assert told.buckets[Bucket.CHECKPOINT_SAVE] == 5 * 10**9
    assert told.notes == []


def test_what_was_lost_and_what_was_malformed_is_said() -> None:
    spoilt = History().add(job_start_time="soon").add(step_count=None, step_start_time=BASE).payloads
    record([*FIRST.payloads, {"job_name": JOB, "lost_entries": {"disk_full": 7}}, *spoilt], None)
    record([{"job_name": JOB, "lost_entries": {"disk_full": 1, "io_error": 2}}], 4)
    assert report().notes == [
        "8 entries were lost while recording: disk_full",
        "2 entries were lost while recording: io_error",
        "2 entries were passed over: malformed entry",
    ]


def test_the_journals_own_report_of_losses_reaches_the_notes() -> None:
    """What a journal writes once it can write again: one entry of the job, with its losses."""
    recorders = Recorders(JOB)
    report = {"job_name": JOB, "lost_entries": {"no_folder": 3}, "lost_by": "host-1-2-0.100000000007"}
    recorders.add(0, [*FIRST.payloads, report])
    recorders.add(0, [report])  # From the journal, and from the cloud.
    assert recorders.notes() == ["3 entries were lost while recording: no_folder"]
    recorders.add(0, [{**report, "lost_by": "host-1-2-0.100000000009"}])
    assert recorders.notes() == ["6 entries were lost while recording: no_folder"]
