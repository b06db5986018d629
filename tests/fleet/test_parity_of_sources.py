"""One job, one report: every field is equal from the journal, the mirror at both levels, and Parquet."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.journal import Header, log_directory
from ml_diagnostics_common.journal._layout import encode_header, segment_name
from ml_diagnostics_common.mirror.names import SegmentName, parse_name
from ml_diagnostics_fleet._batches import Identities, event_batch, parts_of
from ml_diagnostics_fleet.events import EventsFile, write_events
from ml_diagnostics_fleet.schemas import JobKey
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import JobReport
from ml_goodput_measurement.reading import JobLedger

from ..ml_goodput_measurement.histories import JOB, History
from .fleets import NOW_NS, Job, Writer, jobs, write_objects

EMPTY = "empty"


def fields_of(report: JobReport | None) -> dict[str, Any] | None:
    """Every field of a report, as types that compare by value."""
    if report is None:
        return None
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for name, value in fields.items()
    }


def calculated(job: Job, folder: Path, mirror: str = "") -> dict[str, Any] | None:
    """The calculator's report of a job, with the journal in a folder and a mirror; None if it has none."""
    with mock.patch.dict(os.environ, ML_DIAGNOSTICS_DIR=str(folder), ML_DIAGNOSTICS_MIRROR=mirror):
        try:
            return fields_of(GoodputCalculator(job.key.job, job.key.log, _clock_ns=lambda: NOW_NS).report())
        except NoGoodputError:
            return None


def write_journal(job: Job, root: Path) -> None:
    """Write the journal that the job's processes have written."""
    folder = log_directory(root, job.key.log)
    folder.mkdir(parents=True)
    entries = job.entries()
    for writer in job.writers:
        mine = [entry for entry in entries if entry.context.writer == writer.name]
        if mine:
            header = encode_header(Header(job.key.log, writer.name, dict(mine[0].context.labels)))
            lines = [json.dumps({"t": one.timestamp_ns, "s": one.sequence, "p": one.payload}).encode() for one in mine]
            (folder / segment_name(writer.name, 0)).write_bytes(b"\n".join([header, *lines]) + b"\n")


def from_parquet(job: Job, folder: Path) -> dict[str, Any] | None:
    """The report of a job from a file of its events."""
    path = folder / "events.parquet"
    write_events(str(path), [(job.key, job.table())])
    ledger, seen = JobLedger(job.key.job), Identities()
    with EventsFile(str(path)) as file:
        for batch in file.batches(file.jobs()[job.key]):
            for writer, identity, _, rows in parts_of(batch):
                new = seen.new(identity, rows)
                if new.num_rows:
                    ledger.add_batch(writer, event_batch(new, job.key.job, ledger.skipped))
    return fields_of(ledger.report(ledger.end_of_life(NOW_NS), include_timeline=True))


def doubled_and_overlapping(job: Job, mirror: str) -> Iterator[tuple[str, bytes]]:
    """Objects of both levels: those of an hour, those of 30 s that were left, and some that start in between."""
    yield from job.segments(mirror, each=1_000, level=1)
    yield from job.segments(mirror, each=3)
    small = [path for path, _ in job.segments(mirror, each=1)]
    objects = dict(job.segments(mirror, each=1))
    for path in random.Random(7).sample(small, len(small) // 2):
        yield path, objects[path]


@settings(max_examples=60, deadline=None)
@given(jobs(), st.integers(1, 40))
def test_a_report_is_the_same_from_every_source(job: Job, each: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_journal(job, folder / "journal")
        truth = calculated(job, folder / "journal")
        kinds: list[Callable[[str], Iterator[tuple[str, bytes]]]] = [
            lambda mirror: job.segments(mirror, each=each),
            lambda mirror: job.segments(mirror, each=1_000, level=1),
            lambda mirror: doubled_and_overlapping(job, mirror),
        ]
        for number, objects in enumerate(kinds):
            mirror = str(folder / f"mirror-{number}")
            write_objects(objects(mirror))
            assert calculated(job, folder / f"{EMPTY}-{number}", mirror) == truth
            write_journal(job, folder / f"both-{number}")
            assert calculated(job, folder / f"both-{number}", mirror) == truth
        assert from_parquet(job, folder) == truth


@pytest.fixture
def job() -> Job:
    first = History().start(0).init(1, 3).load(3, 4).steps(range(20), at=5).save(9, 105, 108).custom(140, 150)
    second = History().start(300).restore(9, 302, 305).steps(range(10, 30), at=310).step_end(29, 505).end(510)
    labels = {"host": "elsewhere", "process_index": "0"}
    writers = [Writer("w-1", labels, first.payloads), Writer("w-2", labels, second.payloads)]
    return Job(JobKey("goodput_job", JOB), writers)


@pytest.mark.parametrize("level", [0, 1])
def test_a_report_that_lacks_one_entry_differs(job: Job, tmp_path: Path, level: int) -> None:
    """The comparison above is not blind."""
    write_journal(job, tmp_path / "journal")
    truth = calculated(job, tmp_path / "journal")
    assert truth is not None
    mirror = str(tmp_path / "mirror")
    write_objects(job.segments(mirror, each=1, level=level))
    assert calculated(job, tmp_path / EMPTY, mirror) == truth
    lost = sorted(Path(mirror).rglob("w-2.*.gz"))[5]
    lost.unlink()
    found = calculated(job, tmp_path / "later", mirror)
    assert found is not None
    assert found["notes"] != truth["notes"]
    assert found["buckets"] != truth["buckets"]


def test_a_saved_state_continues_from_a_mirror(job: Job, tmp_path: Path) -> None:
    """A second query reads only what is new, and knows of gaps that the first one found."""
    write_journal(job, tmp_path / "journal")
    truth = calculated(job, tmp_path / "journal")
    mirror = str(tmp_path / "mirror")
    objects = list(job.segments(mirror, each=4))
    late = next(path for path, _ in objects if isinstance(name := parse_name(path), SegmentName) and name.first % 8)
    write_objects((path, data) for path, data in objects if path != late)
    with mock.patch.dict(os.environ, ML_DIAGNOSTICS_DIR=str(tmp_path / EMPTY), ML_DIAGNOSTICS_MIRROR=mirror):
        before = GoodputCalculator(JOB, "goodput_job", _clock_ns=lambda: NOW_NS)
        assert any("are not in the mirror" in note for note in before.report().notes)
        before._reader.save_state()
        again = GoodputCalculator(JOB, "goodput_job", _clock_ns=lambda: NOW_NS)
        assert again.report() == before.report()
        write_objects((path, data) for path, data in objects if path == late)
        assert fields_of(again.report()) == truth


def test_late_objects_are_no_other_job(job: Job, tmp_path: Path) -> None:
    """Entries whose segments arrive in any order give the same report, query by query."""
    write_journal(job, tmp_path / "journal")
    truth = calculated(job, tmp_path / "journal")
    mirror = str(tmp_path / "mirror")
    objects = list(job.segments(mirror, each=2))
    random.Random(11).shuffle(objects)
    with mock.patch.dict(os.environ, ML_DIAGNOSTICS_DIR=str(tmp_path / EMPTY), ML_DIAGNOSTICS_MIRROR=mirror):
        calculator = GoodputCalculator(JOB, "goodput_job", _clock_ns=lambda: NOW_NS)
        for one in objects:
            write_objects([one])
            with contextlib.suppress(NoGoodputError):
                calculator.report()
        assert fields_of(calculator.report()) == truth
