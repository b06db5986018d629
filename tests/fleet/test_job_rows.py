"""The map: its rows are those of the report, whatever order, division and repetition the events have."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_fleet import _batches
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.job_rows import Cause, error_rows, job_rows
from ml_diagnostics_fleet.schemas import EVENTS, TABLES, JobKey
from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import Bucket, DaySum
from ml_goodput_measurement.reading import RULES

from ..ml_goodput_measurement.histories import BASE, JOB, History
from .fleets import NOW_NS, Job, Writer, as_dicts, assert_equals_report, jobs, report_of, rows_of, same_rows

KEY = JobKey("goodput_job", JOB)
LABELS = {"host": "elsewhere", "process_index": "0", "chips": "256", "team": "llm"}


def restarted() -> History:
    """A job with a restart, lost steps, saves, a custom event, and the ends of steps."""
    job = History().start(0).init(1, 3).load(3, 4).steps(range(20), at=5).save(9, 105, 108).custom(140, 150)
    job.start(300).init(301, 302).restore(9, 302, 305).steps(range(10, 30), at=310).step_end(29, 505)
    return job.load_after(29, 505, 506).end(510)


def of(history: History, **labels: str) -> Job:
    return Job(KEY, [Writer("w", {**LABELS, **labels}, history.payloads)])


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_rows_are_those_of_the_report(job: Job) -> None:
    assert_equals_report(rows_of(job), report_of(job))


@settings(max_examples=60, deadline=None)
@given(jobs(), st.data())
def test_order_division_and_repetition_of_events_change_nothing(job: Job, data: st.DataObject) -> None:
    table = job.table()
    again = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=10))
    order = data.draw(st.permutations([*range(table.num_rows), *again]))
    shuffled = table.take(pa.array(order)).combine_chunks()
    cuts = sorted(data.draw(st.lists(st.integers(0, shuffled.num_rows), max_size=4)))
    borders = [0, *cuts, shuffled.num_rows]
    parts = [
        batch for start, end in itertools.pairwise(borders) for batch in shuffled.slice(start, end - start).to_batches()
    ]
    if data.draw(st.booleans()):
        parts = [plain(part) for part in parts]
    assert same_rows(job_rows(job.key, parts, NOW_NS), rows_of(job))


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with texts in place of dictionaries, as other engines have them."""
    columns = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, EVENTS.names)


def test_rows_equal_the_calculator_that_reads_the_journal() -> None:
    history = restarted()
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    journal = Journal(KEY.log, root=root, labels={"job": JOB, **LABELS})
    for payload in history.payloads:
        journal.append(payload)
    journal.close()
    tables = EventTables(KEY.log)
    for entries in JournalReader(KEY.log, root=root).read_new():
        tables.add(entries)
    rows = job_rows(KEY, tables.take()[KEY].to_batches(), NOW_NS)
    calculator = GoodputCalculator(JOB, KEY.log, _clock_ns=lambda: NOW_NS)
    assert_equals_report(rows, calculator.report())
    assert len(rows.disruptions) == 1


def ignore_ends_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    read = _batches.event_batch

    def read_wrongly(*arguments: Any) -> Any:
        batch = read(*arguments)
        batch.step_end_times, batch.step_end_numbers = [], []
        return batch

    monkeypatch.setattr("ml_diagnostics_fleet.job_rows.event_batch", read_wrongly)


def count_lost_steps_as_productive(monkeypatch: pytest.MonkeyPatch) -> None:
    days = Ledger.days

    def days_wrongly(self: Ledger, now_ns: int) -> list[DaySum]:
        wrong = {Bucket.WASTED_PROGRESS: Bucket.PRODUCTIVE}
        return [one._replace(bucket=wrong.get(one.bucket, one.bucket)) for one in days(self, now_ns)]

    monkeypatch.setattr(Ledger, "days", days_wrongly)


def end_one_ns_later(monkeypatch: pytest.MonkeyPatch) -> None:
    read = _batches.event_batch

    def read_wrongly(*arguments: Any) -> Any:
        batch = read(*arguments)
        batch.others = [event._replace(time_ns=event.time_ns + 1) for event in batch.others]
        return batch

    monkeypatch.setattr("ml_diagnostics_fleet.job_rows.event_batch", read_wrongly)


@pytest.mark.parametrize("wrong", [ignore_ends_of_steps, count_lost_steps_as_productive, end_one_ns_later])
def test_a_wrong_rule_in_the_map_is_found(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """The negative control: the comparison of the tests above is not blind."""
    job, report = of(restarted()), report_of(of(restarted()))
    assert_equals_report(rows_of(job), report)
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        assert_equals_report(rows_of(job), report)


def test_quality_labels_hosts_and_chips_are_in_the_rows() -> None:
    history = restarted().add(step_start_time=None, step_count=1).add(lost_entries={"disk full": 3}, lost_by="x")
    job = of(history, attempt="2", pid="7", zone="us-east5-a")
    saver = Writer("other", {"host": "second", "process_index": "1"}, [History().save(9, 105, 108).payloads[0]])
    job.writers.append(saver)
    rows = job_rows(KEY, job.table().to_batches(), NOW_NS, missing={"w": 4, "unknown": 9}, ended={"other"})
    (found,) = as_dicts(rows, "jobs")
    count = len(history.payloads) + 1
    assert (found["entries"], found["skipped"], found["lost"], found["saves"]) == (count, 1, 3, 1)
    assert (found["missing"], found["open_writers"], found["rules"], found["as_of_ns"]) == (4, 1, RULES, NOW_NS)
    assert found["labels"] == '{"chips": "256", "team": "llm", "zone": "us-east5-a"}'
    first, second = as_dicts(rows, "attempts")
    assert (first["hosts"], second["hosts"]) == (["elsewhere", "second"], ["elsewhere"])
    assert (first["chips"], first["first_step_ns"]) == (256, int((BASE + 5) * 1e9))


def test_causes_are_joined_by_number() -> None:
    job = of(restarted())
    rows = job_rows(KEY, job.table().to_batches(), NOW_NS, causes={1: Cause("host_failed", "h7", "likely"), 2: None})  # type: ignore[dict-item]
    (found,) = as_dicts(rows, "disruptions")
    assert (found["cause"], found["cause_host"], found["confidence"]) == ("host_failed", "h7", "likely")
    assert as_dicts(rows_of(job), "disruptions")[0]["cause"] is None


def test_a_job_that_runs_ends_as_of_the_moment_and_a_silent_one_with_its_last_record() -> None:
    history = History().start(0).steps(range(100), at=10)
    soon = int((BASE + 1100) * 1e9)
    (running,) = as_dicts(rows_of(of(history), soon), "jobs")
    assert (running["running"], running["end_ns"]) == (True, soon)
    (silent,) = as_dicts(rows_of(of(history)), "jobs")
    assert (silent["running"], silent["end_ns"]) == (False, int((BASE + 1000) * 1e9))


def test_a_step_without_a_number_is_the_same_in_many_rows_and_in_few() -> None:
    """Our writers give each step a number; in a table of others it may be null."""
    table = of(History().start(0).steps(range(300), at=10)).table()
    nulls = [None if number % 7 == 0 else number for number in table["step"].to_pylist()[1:]]
    table = table.set_column(EVENTS.get_field_index("step"), EVENTS.field("step"), pa.array([None, *nulls], pa.int64()))
    many = job_rows(KEY, table.combine_chunks().to_batches(), NOW_NS)
    few = job_rows(KEY, table.to_batches(max_chunksize=20), NOW_NS)
    assert same_rows(many, few)


def test_chips_that_are_no_number_are_not_known() -> None:
    for text in ("", "many", "-4", "0", "9" * 5000, "²"):
        assert as_dicts(rows_of(of(restarted(), chips=text)), "attempts")[0]["chips"] is None


def test_a_job_of_one_moment_and_a_job_without_events_have_a_row() -> None:
    (found,) = as_dicts(rows_of(of(History().start(0))), "jobs")
    assert (found["start_ns"], found["entries"], found["rules"]) == (None, 1, RULES)
    (found,) = as_dicts(job_rows(KEY, [], NOW_NS), "jobs")
    assert (found["start_ns"], found["entries"]) == (None, 0)


def test_an_error_has_a_row_that_fits_into_the_table() -> None:
    rows = error_rows(KEY, ValueError("\ud800" + "x" * 9000), NOW_NS)
    (found,) = as_dicts(rows, "jobs")
    assert found["rules"].startswith("error: ValueError: ?xxx")
    assert rows.error().startswith("ValueError: ?xxx")
    assert rows_of(of(restarted())).error() == ""


def test_entries_of_other_libraries_are_known_by_their_insert_id() -> None:
    table = of(restarted()).table()
    count = table.num_rows
    names = pa.array([f"insertId:{number}" for number in range(count)]).dictionary_encode()
    foreign = table.set_column(3, EVENTS.field("writer"), names).set_column(4, "seq", pa.array([0] * count))
    rows = job_rows(KEY, [*foreign.to_batches(), *foreign.to_batches()], NOW_NS)
    assert as_dicts(rows, "jobs")[0]["entries"] == count
    assert rows.ledger_rows == rows_of(of(restarted())).ledger_rows


def test_no_column_is_a_float() -> None:
    for schema in (EVENTS, *TABLES.values()):
        assert not any(pa.types.is_floating(item.type) for item in schema)
