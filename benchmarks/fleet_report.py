"""Reports of a fleet: DuckDB over 1e6 ledger rows, one question and all answers; beside them 7e4, as a prototype had.

CPU seconds are what counts: a busy machine takes longer by the clock.
"""

from __future__ import annotations

import datetime
import os
import random
import resource
import tempfile
import time
from typing import Any

from benchmarks import process
from benchmarks.results import Row, Table, seconds

_JOBS, _QUICK_JOBS = 10_000, 700
_ATTEMPTS, _DAYS = 4, 5
_HOUR_NS = 3_600 * 10**9
_DAY_NS = 24 * _HOUR_NS
_AS_OF_DAY = 20_779
"""2026-11-22, in days since 1970."""
_CORES, _SECONDS = 2, 2.0
_PROTOTYPE = "0.1 s"


def make(mirror: str, jobs: int) -> dict[str, float]:
    """Write the rows of a fleet, and its dimensions; return the number of ledger rows."""
    import pyarrow as pa
    from ml_diagnostics_fleet.rows_files import RowsWriter, write_dimensions
    from ml_diagnostics_fleet.schemas import DIMENSIONS

    as_of_ns = _AS_OF_DAY * _DAY_NS
    writer, draws, count = RowsWriter(mirror, as_of_ns, as_of_ns), random.Random(1), 0
    known = []
    for number in range(jobs):
        rows = _rows_of(f"run-{number:05}", as_of_ns, draws)
        count += len(rows.ledger_rows)
        writer.add(rows)
        where = number % 3
        values = {"team": f"team-{number % 12:02}", "zone": f"zone-{where}", "accelerator": f"tpu-{where}"}
        nothing = dict.fromkeys(DIMENSIONS["jobs"].names)
        times = {"valid_from_ns": 0, "valid_to_ns": 2**62}
        known.append({**nothing, "log": "log", "job": f"run-{number:05}", **times, **values, "spot": number % 2 == 0})
    writer.commit(events_version=1, events=count)
    prices = [
        {"accelerator": f"tpu-{where}", "zone": f"zone-{where}", "spot": spot, "valid_from_ns": 0}
        | {"valid_to_ns": 2**62, "micro_per_chip_hour": 3_220_000, "currency": "USD"}
        for where in range(3)
        for spot in (False, True)
    ]
    tables = {"jobs": known, "prices": prices}
    write_dimensions(mirror, {name: pa.Table.from_pylist(rows, DIMENSIONS[name]) for name, rows in tables.items()})
    return {"rows": count}


def _rows_of(job: str, as_of_ns: int, draws: random.Random) -> Any:
    from ml_diagnostics_fleet.job_rows import JobRows
    from ml_goodput_measurement.partition import Bucket

    key = "log", job
    lost = (Bucket.INFRASTRUCTURE_RECOVERY, Bucket.TPU_INITIALIZATION, Bucket.CHECKPOINT_SAVE, Bucket.WASTED_PROGRESS)
    buckets = [bucket.value for bucket in (*lost, Bucket.PRODUCTIVE)]
    first = _AS_OF_DAY - _ATTEMPTS * _DAYS
    rows = JobRows()
    for attempt in range(1, _ATTEMPTS + 1):
        start = first + _DAYS * (attempt - 1)
        start_ns, end_ns = start * _DAY_NS, (start + _DAYS) * _DAY_NS
        for day in range(start, start + _DAYS):
            date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
            spans = [draws.randrange(_HOUR_NS) for _ in buckets[1:]]
            spans.append(_DAY_NS - sum(spans))
            for bucket, ns in zip(buckets, spans, strict=True):
                rows.ledger_rows.append((*key, attempt, date, bucket, "", ns, as_of_ns, "1"))
        hosts = [f"host-{draws.randrange(500):03}" for _ in range(4)]
        rows.attempts.append(
            (*key, attempt, start_ns, end_ns, "failed", 0, 999, start_ns + 60 * 10**9, 900, 100, hosts, 16)
        )
        if attempt > 1:
            cost = (60 * 10**9, 10**9, 10**9, 0, 10**9, 10**9)
            rows.disruptions.append(
                (*key, attempt - 1, attempt - 1, start_ns, start_ns, *cost, 0, 100, None, None, None)
            )
    saves = 5 if draws.randrange(20) == 0 else 80 + draws.randrange(200)
    counts = (3_999, 3_600, _ATTEMPTS - 1, _ATTEMPTS, 0, 0, saves, 10_000, 0, 0, 0, 0)
    rows.jobs.append((*key, first * _DAY_NS, as_of_ns, False, *counts, '{"team": "llm"}', as_of_ns, "1"))
    return rows


def one_question(mirror: str) -> dict[str, float]:
    """Return the seconds for goodput by team, from the files to the groups, without imports."""
    from ml_diagnostics_fleet.reports import FleetReports, _duckdb

    _duckdb()
    cpu, started = _cpu_seconds(), time.perf_counter()
    with FleetReports(mirror) as reports:
        groups = reports.goodput(["team"])
    return {"groups": len(groups), **_spent(cpu, started)}


def all_answers(mirror: str) -> dict[str, float]:
    """Return the seconds for all that `goodput fleet report` shows, without imports."""
    from ml_diagnostics_fleet.overview import overview_of
    from ml_diagnostics_fleet.reports import FleetReports, _duckdb

    _duckdb()
    cpu, started = _cpu_seconds(), time.perf_counter()
    with FleetReports(mirror) as reports:
        view = overview_of(reports, ["team"])
    counts = {"jobs": sum(group.jobs for group in view.groups), "rare": len(view.saving.rare)}
    return {**counts, **_spent(cpu, started)}


def measure(*, quick: bool) -> list[Table]:
    """Write rows of a fleet of the prototype's size and of the contract's, and report each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for jobs in (_QUICK_JOBS,) if quick else (_QUICK_JOBS, _JOBS):
            mirror = os.path.join(folder, str(jobs))  # noqa: PTH118
            made = process.ours(make, mirror=mirror, jobs=jobs)
            one = process.ours(one_question, mirror=mirror)
            every = process.ours(all_answers, mirror=mirror)
            if every["jobs"] != jobs or not every["rare"]:
                raise RuntimeError(f"expected {jobs} jobs in all groups, some of which save too rarely, got {every}")
            rows += _rows(made, one, every, is_full=jobs == _JOBS)
    return [Table("Reports of a fleet", _NOTE, rows)]


def _rows(made: Any, one: Any, every: Any, *, is_full: bool) -> list[Row]:
    size = f"{made['rows']:,} ledger rows"
    work = {f"goodput by team over {size}": one, f"all answers of `goodput fleet report` over {size}": every}
    return [
        Row(
            name,
            f"{seconds(found['cpu'])} of CPU, {seconds(found['wall'])} by the clock, {found['mib']:.0f} MiB",
            compared_with=_PROTOTYPE if found is one and not is_full else "",
            target=f"<= {_CORES * _SECONDS:g} CPU-s, so {_SECONDS:g} s on {_CORES} free cores" if is_full else "",
            met=found["cpu"] <= _CORES * _SECONDS if is_full else None,
        )
        for name, found in work.items()
    ]


_NOTE = (
    "Ledger rows of jobs with 4 attempts over 20 days, with a table of teams and one of prices, read from Parquet and"
    " summed by DuckDB. All answers are eight questions, advice on saves for each job, and the hosts."
)


def _spent(cpu: float, started: float) -> dict[str, float]:
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": _cpu_seconds() - cpu, "wall": time.perf_counter() - started, "mib": mib}


def _cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime
