"""Ask the doctor for the causes of disruptions, and keep them: `dimensions/causes.parquet` and `hosts.parquet`.

Only the newest rows are read for it, and the doctor's records. What is written can be written again: two that do it at
once lose nothing of each other, and one that is killed is continued by the next.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.exceptions import CredentialsError

from ml_diagnostics_fleet._tables import rows_at
from ml_diagnostics_fleet.dimensions import change_dimension, read_causes, read_dimension
from ml_diagnostics_fleet.job_rows import JobCauses
from ml_diagnostics_fleet.manifest import RowsSnapshot
from ml_diagnostics_fleet.rows_files import read_table, replace_tables
from ml_diagnostics_fleet.schemas import DIMENSIONS, JobKey
from ml_diagnostics_fleet.verdicts import CLOCKS_NS, Doctor, cause_rows, host_rows

__all__ = ["Diagnosis", "causes_by_host", "diagnose", "join_causes"]

_JOBS_A_WRITE: Final = 100
_SURE: Final = ("likely", "proven")
_LATE_NS: Final = 2 * 86_400 * 10**9
_RUNNING: Final = "running"

_Row = Mapping[str, Any]


@dataclass(slots=True)
class Diagnosis:
    """The result of asking the doctor.

    Attributes:
        jobs: The number of jobs that it was asked about.
        causes: The number of disruptions that were judged, by the rule that names the cause.
        blamed: The number of those that name a host.
        unknown: The number of disruptions of attempts that the doctor does not know.
        errors: The jobs that it could not read, and why.
    """

    jobs: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    blamed: int = 0
    unknown: int = 0
    errors: list[tuple[JobKey, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Job:
    """The rows of a job, and what is to be asked about it."""

    attempts: list[_Row] = field(default_factory=list)
    disruptions: list[_Row] = field(default_factory=list)
    asked: list[_Row] = field(default_factory=list)
    """The disruptions without a cause."""
    has_new_attempts: bool = False


def diagnose(
    mirror: str | os.PathLike[str],
    doctor: Doctor,
    *,
    now_ns: int,
    since_ns: int = 0,
    jobs: Collection[str] = (),
    again: bool = False,
    report: Callable[[int, int], None] = lambda done, all_jobs: None,
) -> Diagnosis:
    """Ask the doctor for the causes of disruptions, write them, and join them to the newest rows.

    A disruption is asked about once for each version of the doctor's rules; again while its attempt is not known, and
    for two days while its cause is only possible, since records of other hosts may arrive late. Causes that others have
    written are kept. A job that cannot be read costs itself alone.

    Args:
        mirror: The mirror.
        doctor: The doctor.
        now_ns: The time, in ns since 1970.
        since_ns: Only disruptions and ends of attempts since this time.
        jobs: Only jobs of these names; empty for all.
        again: True to ask also about disruptions that were judged by this version.
        report: Called with the number of jobs that were asked about, and of all.

    Raises:
        NotFoundError: There are no rows, or none of one of the jobs.
        ConfigurationError: A table of causes or of hosts is damaged.
        StorageError: The mirror cannot be read or written.
    """
    snapshot, done = rows_at(mirror, None), Diagnosis()
    found = _jobs_of(mirror, snapshot, jobs, since_ns)
    known = _known_rows(read_dimension(mirror, "causes"), None if again else doctor.version)
    _choose(found, known, read_dimension(mirror, "hosts"), snapshot.as_of_ns - _LATE_NS)
    wanted = {key: job for key, job in sorted(found.items()) if job.asked or job.has_new_attempts}
    causes: list[_Row] = []
    hosts: list[_Row] = []
    for number, (key, job) in enumerate(wanted.items(), 1):
        judged, listed = _ask(doctor, key, job, done)
        causes += judged
        hosts += listed
        if number % _JOBS_A_WRITE == 0:
            _write(mirror, causes, hosts)
            causes, hosts = [], []
        report(number, len(wanted))
    _write(mirror, causes, hosts)
    join_causes(mirror, now_ns)
    return done


def _ask(doctor: Doctor, key: JobKey, job: _Job, done: Diagnosis) -> tuple[list[_Row], list[_Row]]:
    """Return new rows of causes and of hosts of one job, and count them; none if it cannot be read."""
    done.jobs += 1
    first_ns = min((row["last_event_ns"] for row in job.asked), default=None)
    try:
        verdicts = doctor.attempts(key.job, since_ns=None if first_ns is None else max(0, first_ns - CLOCKS_NS))
    except CredentialsError:
        raise
    except Exception as error:
        done.errors.append((key, f"{type(error).__name__}: {error}"))
        return [], []
    numbers = {row["number"] for row in job.asked}
    judged = [
        row for row in cause_rows(job.disruptions, job.attempts, verdicts, doctor.version) if row["number"] in numbers
    ]
    done.causes.update(row["cause"] for row in judged)
    done.blamed += sum(row["cause_host"] is not None and row["confidence"] in _SURE for row in judged)
    done.unknown += len(numbers) - len(judged)
    return list(judged), list(host_rows(job.attempts, verdicts))


def join_causes(mirror: str | os.PathLike[str], now_ns: int) -> RowsSnapshot | None:
    """Join causes and hosts to the newest rows: the same rows as those of the next run over the same events.

    Args:
        mirror: The mirror.
        now_ns: The time, in ns since 1970.

    Returns:
        The newest snapshot; None if there is none.

    Raises:
        ConfigurationError: A table of causes or of hosts is damaged.
        ManifestError: The manifest is damaged.
        StorageError: The mirror cannot be read or written.
    """

    def changed(snapshot: RowsSnapshot) -> dict[str, pa.Table]:
        # Read after the snapshot: whoever has joined its causes to that has written them before.
        known = read_causes(mirror)
        tables = {name: read_table(mirror, snapshot, name) for name in ("disruptions", "attempts")}
        joined = {
            "disruptions": _with_causes(tables["disruptions"], known),
            "attempts": _with_hosts(tables["attempts"], known),
        }
        return {name: table for name, table in joined.items() if not table.equals(tables[name])}

    return replace_tables(mirror, changed, now_ns)


def causes_by_host(mirror: str | os.PathLike[str], as_of_ns: int | None = None) -> dict[str, Counter[str]]:
    """Return the causes for which each host is blamed, likely or proven, and how often.

    Args:
        mirror: The mirror.
        as_of_ns: The rows of the newest moment that is not after it, in ns since 1970; None for the newest.

    Raises:
        NotFoundError: There are no rows.
        StorageError: They cannot be read.
    """
    found: dict[str, Counter[str]] = {}
    table = read_table(mirror, rows_at(mirror, as_of_ns), "disruptions").select(["cause", "cause_host", "confidence"])
    for row in _rows_of(table.filter(pc.is_valid(table["cause_host"]))):
        if row["confidence"] in _SURE:
            found.setdefault(row["cause_host"], Counter())[row["cause"]] += 1
    return found


def _jobs_of(
    mirror: str | os.PathLike[str], snapshot: RowsSnapshot, names: Collection[str], since_ns: int
) -> dict[JobKey, _Job]:
    """Return the attempts and disruptions of jobs that ended since a time.

    Raises:
        NotFoundError: A job has no rows.
    """
    found: dict[JobKey, _Job] = {}
    seen: set[str] = set()
    for name, end, columns in (
        ("attempts", "end_ns", "log job attempt start_ns end_ns ended hosts"),
        ("disruptions", "last_event_ns", "log job number attempt last_event_ns resumed_ns"),
    ):
        table = read_table(mirror, snapshot, name).select(columns.split())
        if names:
            table = table.filter(pc.is_in(table["job"], pa.array(sorted(names), pa.string())))
            seen.update(table["job"].unique().to_pylist())
        for row in _rows_of(table.filter(pc.greater_equal(table[end], since_ns))):
            job = found.setdefault(JobKey(row["log"], row["job"]), _Job())
            (job.attempts if name == "attempts" else job.disruptions).append(row)
    missing = sorted(set(names) - seen)
    if missing:
        raise NotFoundError(f"{os.fspath(mirror)} has no rows of the job {missing[0]}")
    return found


def _known_rows(causes: pa.Table, version: str | None) -> dict[tuple[str, str, int], _Row]:
    """Return the causes that count by disruption: those of others, and those of a version of the doctor."""
    return {
        (row["log"], row["job"], row["number"]): row
        for row in _rows_of(causes)
        if row["judged_by"] is None or row["judged_by"] == version
    }


def _choose(
    found: Mapping[JobKey, _Job], known: Mapping[tuple[str, str, int], _Row], hosts: pa.Table, sure_ns: int
) -> None:
    """Note what is to be asked about each job.

    Args:
        found: The jobs.
        known: The causes that count.
        hosts: The hosts that are known.
        sure_ns: A cause that is only possible is asked about again if the job resumed since this time.
    """
    starts = hosts.select(["log", "job", "attempt", "start_ns"])
    listed = {(row["log"], row["job"], row["attempt"], row["start_ns"]) for row in _rows_of(starts)}
    for key, job in found.items():
        for row in job.disruptions:
            cause = known.get((*key, row["number"]))
            if cause is not None and cause["judged_by"] is None:
                continue  # Of the platform team, also if it is about another moment.
            is_known = cause is not None and cause["last_event_ns"] == row["last_event_ns"]
            is_open = cause is not None and cause["confidence"] not in _SURE
            if not is_known or (is_open and row["resumed_ns"] >= sure_ns):
                job.asked.append(row)
        job.has_new_attempts = any(
            row["ended"] == _RUNNING or (*key, row["attempt"], row["start_ns"]) not in listed for row in job.attempts
        )


def _write(mirror: str | os.PathLike[str], causes: Iterable[_Row], hosts: Iterable[_Row]) -> None:
    """Put rows into the tables, in place of those of the same disruption or attempt."""
    for name, number, rows in (("causes", "number", causes), ("hosts", "attempt", hosts)):
        found = {(row["log"], row["job"], row[number]): row for row in rows}
        if found:
            new = pa.Table.from_pylist([found[key] for key in sorted(found)], DIMENSIONS[name])
            change_dimension(mirror, name, functools.partial(_put, number=number, new=new))


def _put(table: pa.Table, *, number: str, new: pa.Table) -> pa.Table | None:
    """Return a table with new rows in place of those with the same keys; None if it has them already.

    Causes of others stay, also those that were written after the doctor was asked.
    """
    if "judged_by" in table.column_names:
        of_others = _keys_of(table.filter(pc.is_null(table["judged_by"])), number)
        new = new.filter(pc.invert(pc.is_in(_keys_of(new, number), of_others.combine_chunks())))
    is_replaced = pc.is_in(_keys_of(table, number), _keys_of(new, number).combine_chunks())
    order = [(column, "ascending") for column in ("log", "job", number)]
    if table.filter(is_replaced).sort_by(order).equals(new):
        return None
    return pa.concat_tables([table.filter(pc.invert(is_replaced)), new]).sort_by(order)


def _keys_of(table: pa.Table, number: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table["log"], table["job"], table[number].cast(pa.string()), "\0")


def _with_causes(table: pa.Table, known: Mapping[JobKey, Mapping[int, Any]]) -> pa.Table:
    columns = []
    for row in _rows_of(table.select(["log", "job", "number", "last_event_ns"])):
        cause = known.get(JobKey(row["log"], row["job"]), {}).get(row["number"])
        columns.append((None, None, None) if cause is None else cause.columns(row["last_event_ns"]))
    for position, name in enumerate(("cause", "cause_host", "confidence")):
        table = _replaced(table, name, [values[position] for values in columns])
    return table


def _with_hosts(table: pa.Table, known: Mapping[JobKey, Mapping[int, Any]]) -> pa.Table:
    hosts = []
    for row in _rows_of(table.select(["log", "job", "attempt", "start_ns", "hosts"])):
        of_job = known.get(JobKey(row["log"], row["job"]))
        found = of_job.hosts.get(row["attempt"]) if isinstance(of_job, JobCauses) else None
        hosts.append(row["hosts"] if found is None else found.added_to(row["hosts"], row["start_ns"]))
    return _replaced(table, "hosts", hosts)


def _replaced(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    position = table.schema.get_field_index(name)
    field = table.schema.field(position)
    return table.set_column(position, field, pa.chunked_array([pa.array(values, field.type)]))


def _rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()
