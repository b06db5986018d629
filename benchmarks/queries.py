"""The first query of a job, and each further one: time and memory, by the length of the job."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.job import JOB, LOG, MemoryLog, Training
from benchmarks.results import Row, Table, seconds

START = 1_700_000_000.0


def query(steps: int, custom_events: int, ticks: int) -> dict[str, Any]:
    """Query a whole job in memory once, then after every ten new steps; the same code for both libraries."""
    from ml_goodput_measurement import goodput

    training = Training(steps, custom_events)
    log = MemoryLog()
    log.payloads += training.payloads(steps)
    entries = len(log.payloads)
    with tempfile.TemporaryDirectory() as cache_dir:
        calculator = goodput.GoodputCalculator(JOB, LOG, cloud_logger=log, cache_dir=cache_dir)
        process.forget_peak()
        before = process.resident_mib()
        first = _ask(calculator)
        added = process.resident_mib(peak=True) - before
        later = []
        for tick in range(1, ticks + 1):
            log.payloads += training.payloads(steps + 10 * tick)
            later.append(_ask(calculator))
        last_step = calculator.get_job_goodput()[2]
    return {"entries": entries, "first": first, "added_mib": added, "later": later, "last_step": last_step}


def _ask(calculator: Any) -> float:
    """Query what a monitor's tick does: the goodput with its breakdown, and the details with the ideal step time."""
    started = time.perf_counter()
    calculator.get_job_goodput(include_badput_breakdown=True)
    calculator.get_job_goodput_details()["ideal_step_time"]
    return time.perf_counter() - started


def write_attempts(count: int) -> int:
    """Write a job of many attempts, each of another process, to the journal; return its number of entries."""
    # Not above: `query` runs in the environment of the public package, too.
    from ml_diagnostics_common.journal import Header, log_directory
    from ml_diagnostics_common.journal._layout import encode_header, segment_name

    folder = log_directory(Path(os.environ["ML_DIAGNOSTICS_DIR"]), LOG)
    folder.mkdir(parents=True)
    entries = 0
    for attempt in range(count):
        writer, run_start = f"host-{attempt}-{1_700_000_000_000_000_000 + attempt}", START + 60 * attempt
        header = Header(LOG, writer, {"job": JOB, "process_index": "0"}, {}, "INFO", ship=False)
        payloads: list[dict[str, Any]] = [{"job_name": JOB, "job_start_time": run_start}]
        for step in range(5):
            started = run_start + 10 * (step + 1)
            payloads.append({"job_name": JOB, "step_count": 3 * attempt + step, "step_start_time": started})
        lines = [encode_header(header)]
        for number, payload in enumerate(payloads):
            entry = {"t": int(max(payload.values(), key=_seconds) * 1e9), "s": 100_000_000_000 + number, "p": payload}
            lines.append(json.dumps(entry).encode())
        (folder / segment_name(writer, 0)).write_bytes(b"\n".join(lines))
        entries += len(payloads)
    return entries


def _seconds(value: Any) -> float:
    return value if isinstance(value, float) else 0.0


def report_attempts() -> dict[str, Any]:
    """Query the goodput and the whole report, as a new process does."""
    from ml_goodput_measurement import goodput

    calculator = goodput.GoodputCalculator(JOB, LOG)
    started = time.perf_counter()
    calculator.get_job_goodput(include_badput_breakdown=True)
    report = calculator.report()
    return {"seconds": time.perf_counter() - started, "attempts": len(report.attempts)}


def measure_attempts(*, quick: bool) -> Table:
    counts = [200, 1_000] if quick else [2_000, 10_000]
    rows, took = [], []
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            environment = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local"}
            entries = process.ours(write_attempts, environment=environment, count=count)
            runs = []
            for _ in range(1 if quick else 3):
                shutil.rmtree(Path(folder, "state"), ignore_errors=True)
                runs.append(process.ours(report_attempts, environment=environment))
        assert {run["attempts"] for run in runs} == {count}
        took.append(statistics.median(run["seconds"] for run in runs))
        is_largest = count == 10_000
        what = f"{count:,} attempts, each by a process of its own ({entries:,} entries)"
        met = took[-1] < 3 if is_largest else None
        rows.append(Row(what, seconds(took[-1]), target="< 3 s" if is_largest else "", met=met))
    growth = f"{took[1] / took[0]:.1f} times the time"
    rows.append(Row(f"{counts[1]:,} attempts against {counts[0]:,}", growth, target="linear: about 5 times"))
    return Table("Many attempts", "First query and report, from the journal on disk.", rows)


def measure(*, quick: bool) -> list[Table]:
    cases = [(10_000, 0), (100_000, 0)] if quick else [(10_000, 0), (100_000, 0), (1_000_000, 0), (1_000_000, 1000)]
    first_rows, later_rows = [], []
    firsts, laters = {}, {}
    for steps, custom_events in cases:
        repetitions = 1 if quick else 3
        mine = [process.ours(query, steps=steps, custom_events=custom_events, ticks=100) for _ in range(repetitions)]
        theirs = process.reference(query, steps=steps, custom_events=custom_events, ticks=1 if quick else 2)
        assert {run["last_step"] for run in mine} == {steps + 998}
        assert {run["entries"] for run in mine} == {theirs["entries"]}
        what = f"{steps:,} steps" + (f", {custom_events:,} custom events" if custom_events else "")
        first, added = (statistics.median(run[key] for run in mine) for key in ("first", "added_mib"))
        firsts[steps, custom_events] = first
        is_largest = steps == 1_000_000
        speed, memory = theirs["first"] / first, theirs["added_mib"] / max(added, 0.1)
        first_rows += [
            Row(
                f"{what} ({mine[0]['entries']:,} entries)",
                seconds(first),
                seconds(theirs["first"]),
                f"{speed:.1f} times faster",
                "12 times faster" if is_largest else "",
                speed >= 12 if is_largest else None,
            ),
            Row(
                "memory added by it",
                f"{added:.0f} MiB",
                f"{theirs['added_mib']:.0f} MiB",
                f"1/{memory:.0f}",
                "1/20" if is_largest else "",
                memory >= 20 if is_largest else None,
            ),
        ]
        ticks = [tick for run in mine for tick in run["later"]]
        p50 = laters[steps, custom_events] = statistics.median(ticks)
        their_tick = statistics.median(theirs["later"])
        later_rows.append(
            Row(
                what,
                f"{seconds(p50)} p50, {seconds(process.percentile(ticks, 0.99))} p99, {seconds(max(ticks))} max",
                seconds(their_tick),
                f"{their_tick / p50:,.0f} times faster",
                "p50 < 0.5 ms",
                p50 < 0.5e-3,
            )
        )
    if not quick:
        custom = firsts[1_000_000, 1000] / firsts[1_000_000, 0]
        first_rows.append(
            Row(
                "1,000 custom events against none",
                f"{custom:.2f} times the time",
                "",
                "",
                "<= 1.1 times",
                custom <= 1.1,
            )
        )
        growth = laters[1_000_000, 0] / laters[10_000, 0]
        later_rows.append(
            Row(
                "1,000,000 steps against 10,000",
                f"{growth:.2f} times the time",
                "",
                "",
                "flat: <= 2 times",
                growth <= 2,
            )
        )
    return [
        Table("First query", "`get_job_goodput(True)` and the details, from a log in memory; peak memory.", first_rows),
        Table("Query after 10 new steps", "What a monitor pays at each tick; the same two calls.", later_rows),
        measure_attempts(quick=quick),
    ]
