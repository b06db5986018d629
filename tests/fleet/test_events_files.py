"""Events in Parquet: written and read back the same, small, and a job at a time."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_fleet import event_tables, events
from ml_diagnostics_fleet.event_tables import EventTables, deduplicated
from ml_diagnostics_fleet.events import EventsFile, write_events
from ml_diagnostics_fleet.job_rows import job_rows
from ml_diagnostics_fleet.schemas import EVENTS, GROUPS, JobKey, group_of
from ml_diagnostics_fleet.synthetic import SyntheticFleet

from ..ml_goodput_measurement.histories import BASE
from .fleets import NOW_NS, Job, fleets, rows_of, same_rows


def written(*members: tuple[JobKey, pa.Table]) -> bytes:
    sink = io.BytesIO()
    write_events(sink, members)
    return sink.getvalue()


@settings(max_examples=30, deadline=None)
@given(fleets(most=3))
def test_a_file_has_the_events_of_its_jobs_in_order(members: list[Job]) -> None:
    tables = [(job.key, job.table()) for job in sorted(members, key=lambda job: job.key)]
    file = EventsFile(written(*tables))
    found = file.jobs()
    assert list(found) == [key for key, _ in tables]
    assert file.rows == sum(table.num_rows for _, table in tables)
    for job, (key, table) in zip(sorted(members, key=lambda job: job.key), tables, strict=True):
        assert file.table(found[key]).to_pylist() == table.to_pylist()
        order = [(row["t_ns"], row["writer"], row["seq"]) for row in table.to_pylist()]
        assert order == sorted(set(order))
        assert same_rows(job_rows(key, file.batches(found[key]), NOW_NS), rows_of(job))


def test_a_row_group_has_one_job_and_no_more_rows_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LARGEST_ROW_GROUP", 400)
    fleet = SyntheticFleet(jobs=2, events=2_000)
    tables = sorted((job.key, job.table()) for job in fleet)
    file = EventsFile(written(*tables))
    for key, table in tables:
        groups = file.jobs()[key]
        assert [group.rows for group in groups][:-1] == [400] * (len(groups) - 1)
        assert sum(group.rows for group in groups) == table.num_rows
        assert [group.first_t_ns for group in groups] == sorted(group.first_t_ns for group in groups)


def test_an_event_takes_less_than_seven_bytes() -> None:
    fleet = SyntheticFleet(jobs=1, events=60_000)
    (member,) = [(job.key, job.table()) for job in fleet]
    assert len(written(member)) / member[1].num_rows < 7


def test_a_job_with_a_long_name_is_found_without_statistics() -> None:
    context = EntryContext("log " * 2000, "", {}, {"host": "h"}, writer="w")
    tables = EventTables(context.log_id)
    name = "job " * 2000
    tables.add([LogEntry(5, 100_000_000_000, {"job_name": name, "job_start_time": BASE}, context)])
    ((key, table),) = tables.take().items()
    assert list(EventsFile(written((key, table))).jobs()) == [JobKey(context.log_id, name)]


def test_entries_without_a_job_are_counted_and_texts_that_are_none_are_kept() -> None:
    context = EntryContext("log", "", {}, {"host": "\ud800", "odd\udfff": "x", "process_index": "none"}, writer="w")
    payloads: list[Any] = [
        {"value": 1},
        {"job_name": 5},
        {"job_name": "\ud800"},
        ["job_name"],
        {"job_name": "a", "custom_badput_event_type": "\ud800", "custom_badput_event_start_time": BASE},
        {"job_name": "a", "custom_badput_event_type": "x", "custom_badput_event_start_time": BASE + 1},
    ]
    tables = EventTables("log")
    tables.add(LogEntry(number, number, payload, context) for number, payload in enumerate(payloads))
    assert (len(tables), tables.without_job) == (2, 4)
    ((key, table),) = tables.take().items()
    rows = EventsFile(written((key, table))).table(EventsFile(written((key, table))).jobs()[key]).to_pylist()
    assert [row["kind"] for row in rows] == ["other", "custom_start"]
    assert (rows[0]["host"], rows[0]["labels"]) == ("\\ud800", '{"odd\\\\udfff": "x"}')
    assert len(tables) == 0
    assert not tables.take()


def test_entries_of_other_libraries_are_kept_by_their_insert_id() -> None:
    context = EntryContext("log", "", {}, {"host": "h", "process_index": "3"})
    own = EntryContext("log", "", {}, {"host": "h"}, writer="w")
    payload = {"job_name": "a", "job_start_time": BASE}
    tables = EventTables("log")
    tables.add([LogEntry(5, 0, payload, context, foreign_id=name) for name in ("x", "y", "x")])
    tables.add([LogEntry(5, 7, payload, own)])
    rows = tables.take()[JobKey("log", "a")].to_pylist()
    found = [(row["writer"], row["seq"], row["process_index"]) for row in rows]
    assert found == [("insertId:x", 0, 3), ("insertId:y", 0, 3), ("w", 7, 0)]


def test_events_are_sorted_and_each_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = next(iter(SyntheticFleet(jobs=1, events=900, all_hosts=True))).table()
    mixed = pa.concat_tables([table.slice(500), table.slice(0, 600), table.slice(100, 300)])
    assert deduplicated(mixed).to_pylist() == table.to_pylist()
    monkeypatch.setattr(event_tables, "_MOST_BYTES", 0)  # As if payloads were longer than a column can be.
    assert deduplicated(mixed).to_pylist() == table.to_pylist()


def test_groups_are_two_hex_digits_and_spread() -> None:
    groups = {group_of(JobKey("log", f"job {number}")) for number in range(5_000)}
    assert len(groups) == GROUPS
    assert group_of(JobKey("log", "job")) == "eb"
    assert all(len(group) == 2 and int(group, 16) < GROUPS for group in groups)


def test_what_is_not_a_file_of_events_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not Parquet")
    with pytest.raises(ValueError, match="text is not a file of Parquet"):
        EventsFile(str(tmp_path / "text"))
    pq.write_table(pa.table({"log": ["a"]}), tmp_path / "other")
    with pytest.raises(ValueError, match="other lacks a column: it is not a file of events"):
        EventsFile(str(tmp_path / "other"))
    with pytest.raises(ObjectNotFoundError, match="missing"):
        EventsFile(str(tmp_path / "missing"))
    mixed = pa.concat_tables([job.table() for job in SyntheticFleet(jobs=2, events=60)]).unify_dictionaries()
    pq.write_table(mixed.cast(EVENTS), tmp_path / "mixed")
    with pytest.raises(ValueError, match="row group 0 has 2 values of 'log'; expected one"):
        EventsFile(str(tmp_path / "mixed")).jobs()
