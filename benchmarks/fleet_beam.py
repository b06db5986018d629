"""The map of a fleet on Apache Beam, in this process and with two workers: what an event costs, beside one machine.

It runs in the environment of `nox -s beam`. CPU seconds are what counts: a busy machine takes longer by the clock.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from typing import Any

from benchmarks import process
from benchmarks.fleet import make
from benchmarks.results import Row, Table, seconds

_JOBS, _EVENTS = 2_000, 10_000_000
_SEGMENT_JOBS, _SEGMENT_EVENTS = 200, 1_000_000
_QUICK = 20
"""A quick run has so many times fewer jobs and events."""
_TWO_WORKERS = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")

_WHOLE_US, _GROUPED_US = 1.6, 2.5
_PROTOTYPE = {"local": "1.0 µs", "whole": "1.3 µs, 150 MB", "two": "1.3 µs", "grouped": "2.1 µs, 452 MB"}


def run_engine(mirror: str, engine: str, source: str, options: list[str]) -> dict[str, Any]:
    """Apply the map to all jobs of a mirror."""
    from ml_diagnostics_fleet.beam_engine import run_beam
    from ml_diagnostics_fleet.local_engine import run_local
    from ml_diagnostics_fleet.synthetic import AS_OF_NS

    if engine == "beam":  # Beam imports its runner and the pipeline's modules when they run.
        with tempfile.TemporaryDirectory() as empty:
            run_beam(empty, AS_OF_NS, source=source)
    before, started = _cpu_seconds(), time.perf_counter()
    if engine == "local":
        run = run_local(mirror, AS_OF_NS, processes=1)
    else:
        run = run_beam(mirror, AS_OF_NS, source=source, options=options)
    wall, cpu = time.perf_counter() - started, _cpu_seconds() - before
    if run.errors:
        raise RuntimeError(f"the map failed for {run.errors[:3]}")
    mib = max(resource.getrusage(kind).ru_maxrss for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    return {"wall": wall, "cpu": cpu, "mib": mib, "events": run.events, "jobs": run.jobs, "rows": _rows(mirror)}


def write_lines(mirror: str, jobs: int, events: int) -> dict[str, float]:
    """Write the segments of a fleet."""
    from ml_diagnostics_fleet.synthetic import SyntheticFleet
    from ml_diagnostics_fleet.synthetic_files import write_segments

    return {"events": write_segments(mirror, SyntheticFleet(seed=1, jobs=jobs, events=events))}


def read_lines(mirror: str) -> dict[str, float]:
    """Read all segments of a mirror into tables, as the first step of a pipeline over them does, with Beam loaded."""
    import apache_beam  # noqa: F401  (its objects are collected, too, when there is garbage)
    from ml_diagnostics_fleet.segment_events import SegmentEvents, parts_of_logs

    before, events = _cpu_seconds(), 0
    for log, writers, _ in parts_of_logs(mirror):
        for _, table in SegmentEvents(mirror, log, writers=writers).tables():
            events += table.num_rows
    return {"cpu": _cpu_seconds() - before, "events": events}


def measure(*, quick: bool) -> list[Table]:
    """Run each engine over the same files of events, and Beam over segments."""
    share = _QUICK if quick else 1
    with tempfile.TemporaryDirectory() as folder:
        mirror, lines = (os.path.join(folder, name) for name in ("mirror", "lines"))  # noqa: PTH118
        process.in_session("beam", make, mirror=mirror, jobs=_JOBS // share, events=_EVENTS // share)
        process.in_session(
            "beam", write_lines, mirror=lines, jobs=_SEGMENT_JOBS // share, events=_SEGMENT_EVENTS // share
        )
        engines = [("local", "events", ()), ("beam", "events", ()), ("beam", "events", _TWO_WORKERS)]
        local, whole, two = (
            process.in_session("beam", run_engine, mirror=mirror, engine=engine, source=source, options=list(options))
            for engine, source, options in engines
        )
        grouped = process.in_session("beam", run_engine, mirror=lines, engine="beam", source="segments", options=[])
        read = process.in_session("beam", read_lines, mirror=lines)
    if not local["rows"] == whole["rows"] == two["rows"]:
        raise RuntimeError(f"the engines have different rows: {local['rows']}, {whole['rows']}, {two['rows']}")
    return [
        Table("A fleet on Apache Beam", _note(local, grouped), _table(local, whole, two, grouped, read, quick=quick))
    ]


def _table(local: Any, whole: Any, two: Any, grouped: Any, read: Any, *, quick: bool) -> list[Row]:
    of_lines = read["cpu"] / read["events"]
    of_group = grouped["cpu"] / grouped["events"] - of_lines
    each = whole["cpu"] / whole["events"]
    return [
        Row("the engine for one machine, one process", _measured(local), compared_with=_PROTOTYPE["local"]),
        Row(
            "Beam's FnApiRunner, a job an element, nothing shuffled, CPU time an event",
            _measured(whole),
            compared_with=_PROTOTYPE["whole"],
            target=f"<= {_WHOLE_US:g} µs" if not quick else "",
            met=each * 1e6 <= _WHOLE_US if not quick else None,
        ),
        Row("the same with two worker processes, with their start", _measured(two), compared_with=_PROTOTYPE["two"]),
        Row(
            "Beam's FnApiRunner, batches of events from segments, grouped by job, without reading the lines",
            f"{seconds(of_group)}; {grouped['mib']:.0f} MiB",
            compared_with=_PROTOTYPE["grouped"],
            target=f"<= {_GROUPED_US:g} µs" if not quick else "",
            met=of_group * 1e6 <= _GROUPED_US if not quick else None,
        ),
        Row("reading the lines of the segments into batches", seconds(of_lines)),
    ]


def _measured(run: Any) -> str:
    return f"{seconds(run['cpu'] / run['events'])}; {seconds(run['wall'])}, {run['mib']:.0f} MiB"


def _note(local: Any, grouped: Any) -> str:
    return (
        f"{local['events']:,} events of {local['jobs']:,} jobs in files of events; {grouped['events']:,} in segments."
        " CPU time an event, without imports; then the time by the clock, and the largest process. All engines have the"
        " same sums. Beside it the numbers of a prototype, on another day."
    )


def _rows(mirror: str) -> list[int]:
    """Return the number of rows of the newest run, and the sum of their times."""
    from ml_diagnostics_fleet.rows_files import newest_rows, read_table

    snapshot = newest_rows(mirror)
    assert snapshot is not None
    table = read_table(mirror, snapshot, "ledger_rows")
    return [table.num_rows, sum(table["ns"].to_pylist())]


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
