"""A fleet of 2,000 jobs with 1e8 events, made from a seed: its size, and what the map costs on two processes.

CPU seconds are what counts: a busy machine takes longer by the clock.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.results import Row, Table, seconds

_JOBS, _EVENTS = 2_000, 100_000_000
_QUICK = 100
"""A quick run has so many times fewer jobs and events."""
_OF_ONE = 1_000_000
"""Events of one job, read cold."""
_SEGMENT_EVENTS = 300_000
_PROCESSES = 2

_MAP_US, _WALL_SECONDS, _WORKER_MIB, _BYTES, _COLD_SECONDS = 0.8, 45.0, 143.0, 7.0, 1.0  # 143 MiB are 150 MB.
_PROTOTYPE = {"map": "0.73 µs", "fleet": "73 CPU-s, 79 MB", "size": "5.6", "cold": "0.73 CPU-s"}


def make(mirror: str, jobs: int, events: int) -> dict[str, float]:
    """Write the files of events of a fleet; return their number of events and of bytes, and the CPU seconds."""
    from ml_diagnostics_fleet.synthetic import SyntheticFleet
    from ml_diagnostics_fleet.synthetic_files import write_event_files

    manifest = write_event_files(mirror, SyntheticFleet(seed=1, jobs=jobs, events=events), processes=_PROCESSES)
    rows, size = (sum(getattr(entry, name) for entry in manifest.files) for name in ("rows", "bytes"))
    return {"events": rows, "bytes": size, "cpu": _cpu_seconds()}


def sum_fleet(mirror: str, processes: int) -> dict[str, float]:
    """Apply the map to all jobs of a mirror."""
    from ml_diagnostics_fleet.local_engine import run_local
    from ml_diagnostics_fleet.rows_files import read_table
    from ml_diagnostics_fleet.synthetic import AS_OF_NS

    before, started = _cpu_seconds(), time.perf_counter()
    run = run_local(mirror, AS_OF_NS, processes=processes)
    wall, cpu = time.perf_counter() - started, _cpu_seconds() - before
    if run.errors or run.failed_groups:
        raise RuntimeError(f"the map failed for {run.errors[:3]}, {run.failed_groups}")
    who = resource.RUSAGE_CHILDREN if processes > 1 else resource.RUSAGE_SELF
    rows = read_table(mirror, run.snapshot, "ledger_rows")
    jobs = read_table(mirror, run.snapshot, "jobs")
    walls = sum(job["end_ns"] - job["start_ns"] for job in jobs.select(["start_ns", "end_ns"]).to_pylist())
    if walls != sum(rows["ns"].to_pylist()):
        raise RuntimeError("the rows do not sum to the wall time")
    mib = resource.getrusage(who).ru_maxrss / 1024
    return {"wall": wall, "cpu": cpu, "mib": mib, "rows": rows.num_rows, "jobs": run.jobs, "events": run.events}


def compact_segments(mirror: str, events: int) -> dict[str, float]:
    """Compact the segments of a few jobs."""
    from ml_diagnostics_fleet.compact import compact
    from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
    from ml_diagnostics_fleet.synthetic_files import write_segments

    write_segments(mirror, SyntheticFleet(seed=1, jobs=6, events=events))
    before = _cpu_seconds()
    done = compact(mirror, now_ns=AS_OF_NS)
    return {"events": done.events, "cpu": _cpu_seconds() - before, "segments": done.segments}


def read_one(path: str, rows: int) -> dict[str, float]:
    """Return the CPU seconds from a file of one job's events to its ledger, with the imports."""
    before = _cpu_seconds()
    from ml_diagnostics_fleet.local_engine import map_files
    from ml_diagnostics_fleet.synthetic import AS_OF_NS

    found = map_files([path], AS_OF_NS)
    entries = found.table("jobs")["entries"].to_pylist()
    if len(entries) != 1 or entries[0] < rows / 2:
        raise RuntimeError(f"expected one job with about {rows} entries, got {entries}")
    return {"cpu": _cpu_seconds() - before, "entries": entries[0]}


def measure(*, quick: bool) -> list[Table]:
    """Make a fleet, sum it on two processes and on one, and compact segments."""
    jobs, events = (_JOBS // _QUICK, _EVENTS // _QUICK) if quick else (_JOBS, _EVENTS)
    with tempfile.TemporaryDirectory() as folder:
        mirror = os.path.join(folder, "mirror")  # noqa: PTH118
        made = process.ours(make, mirror=mirror, jobs=jobs, events=events)
        both = process.ours(sum_fleet, mirror=mirror, processes=_PROCESSES)
        one = process.ours(sum_fleet, mirror=mirror, processes=1) if quick or made["events"] < 2e7 else both
        small = os.path.join(folder, "small")  # noqa: PTH118
        process.ours(make, mirror=small, jobs=1, events=_OF_ONE)
        (path,) = Path(small).rglob("*.parquet")
        cold = process.ours(read_one, path=str(path), rows=_OF_ONE)
        segments = os.path.join(folder, "segments")  # noqa: PTH118
        compacted = process.ours(compact_segments, mirror=segments, events=_SEGMENT_EVENTS // (10 if quick else 1))
    return [Table("A fleet", _note(made), _rows(made, both, one, cold, compacted, quick=quick))]


def _rows(made: Any, both: Any, one: Any, cold: Any, compacted: Any, *, quick: bool) -> list[Row]:
    each = one["cpu"] / one["events"]
    size = made["bytes"] / made["events"]
    millions = cold["cpu"] / cold["entries"] * 1e6
    work = f"{both['events']:,} events of {both['jobs']:,} jobs, {_PROCESSES} processes"
    is_good = both["cpu"] <= _PROCESSES * _WALL_SECONDS and both["mib"] <= _WORKER_MIB
    return [
        Row(
            "the map, from Parquet to rows, CPU time an event",
            seconds(each),
            compared_with=_PROTOTYPE["map"],
            target=f"<= {_MAP_US} µs",
            met=each * 1e6 <= _MAP_US,
        ),
        Row(
            work,
            f"{seconds(both['wall'])}, {both['mib']:.0f} MiB a process; {both['cpu']:.1f} CPU-s, {both['rows']:,} rows",
            compared_with=_PROTOTYPE["fleet"],
            target=f"<= {_PROCESSES * _WALL_SECONDS:g} CPU-s, so {_WALL_SECONDS:g} s on 2 free cores; <= 150 MB"
            if not quick
            else "",
            met=is_good if not quick else None,
        ),
        Row(
            "size of an event in Parquet",
            f"{size:.1f} B",
            compared_with=_PROTOTYPE["size"] + " B",
            target=f"<= {_BYTES:g} B",
            met=size <= _BYTES,
        ),
        Row(
            f"the rows of one job of {cold['entries']:,} events, read cold, CPU time for 1e6",
            seconds(millions),
            compared_with=_PROTOTYPE["cold"],
            target=f"<= {_COLD_SECONDS:g} s",
            met=millions <= _COLD_SECONDS,
        ),
        Row(
            f"compaction of {compacted['events']:,} events in {compacted['segments']:,} segments, CPU time an event",
            seconds(compacted["cpu"] / compacted["events"]),
        ),
        Row("making the fleet from its seed, CPU time an event", seconds(made["cpu"] / made["events"])),
    ]


def _note(made: Any) -> str:
    return (
        f"{made['events']:,} synthetic events: for each step its start and two marks of a data load, saves, custom"
        " events, and restarts. Beside it the numbers of a prototype, on another day."
    )


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
