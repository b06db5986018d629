"""One value of a metric recorded: in a tight loop, and paced as training paces it, with a slow Cloud Logging."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import process, trackers
from benchmarks.results import Row, Table, seconds
from benchmarks.run_cloud import run_cloud
from benchmarks.trackers import Record, Tracker

_BACKEND_SECONDS = 0.03
_PACE_SECONDS = 0.005
_SHORTEST_LINE = 100

Times = dict[str, list[float]]


def record_metrics(kind: str, urls: dict[str, str], tight: int, paced: int) -> dict[str, Any]:
    """Record in a tight loop and then paced, there beside a bare append of as many bytes as an entry of ours.

    Args:
        kind: The kind of the tracker.
        urls: The URLs of Google's services.
        tight: How many values in the tight loop.
        paced: How many then.

    Returns:
        Seconds of each call: in the tight loop, paced, and of the bare append; and its bytes.
    """
    trackers.prepare(kind, urls)
    record = trackers.start(kind)
    record("loss", 2.5, 0)
    line = _line(kind)
    with tempfile.TemporaryDirectory(dir=os.environ.get("ML_DIAGNOSTICS_DIR")) as folder:
        bare = os.open(f"{folder}/bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

        def append(_name: str, _value: float, _step: int) -> None:
            os.write(bare, line)

        times = {
            "bare tight": _tight(append, 1, tight),
            "tight": _tight(record, 1, tight),
            **_paced({"bare": append, "paced": record}, 1 + tight, paced),
        }
    return {"times": times, "bytes": len(line)}


def _line(kind: str) -> bytes:
    """Return the bytes of the first entry of the metric in our journal."""
    if kind == "ours":
        for segment in Path(os.environ["ML_DIAGNOSTICS_DIR"]).glob("journal/*/*.jsonl"):
            for line in segment.read_bytes().splitlines(keepends=True):
                if b'"values"' in line and b'"loss"' in line:
                    assert len(line) >= _SHORTEST_LINE, line
                    return line
        raise AssertionError("the metric is not in the journal")
    return b"x" * (_SHORTEST_LINE - 1) + b"\n"


def _tight(function: Record, first_step: int, count: int) -> list[float]:
    """Return the seconds of each call."""
    times, clock = [], time.perf_counter_ns
    for step in range(first_step, first_step + count):
        started = clock()
        function("loss", 2.5, step)
        times.append((clock() - started) / 1e9)
    return times


def _paced(functions: dict[str, Record], first_step: int, count: int) -> Times:
    """Return the seconds of each call; the functions take turns, with a pause before each call."""
    times: Times = {name: [] for name in functions}
    for step in range(first_step, first_step + count):
        for name, function in functions.items():
            time.sleep(_PACE_SECONDS)
            started = time.perf_counter_ns()
            function("loss", 2.5, step)
            times[name].append((time.perf_counter_ns() - started) / 1e9)
    return times


def measure(*, quick: bool) -> list[Table]:
    tight, paced = (20_000, 300) if quick else (100_000, 2_000)
    runs = [_run(trackers.OURS, tight, paced) for _ in range(1 if quick else 3)]
    others = {tracker: _run(tracker, *_sizes(tracker, tight, paced)) for tracker in trackers.ALL[1:]}
    rows = [_tight_row(runs, others, "p50", "tight loop, median", 5e-6)]
    rows += [_tight_row(runs, others, "mean", "tight loop, mean"), _tight_row(runs, others, "p99", "tight loop, p99")]
    rows += [_paced_row(runs, others, name) for name in ("p50", "p99")]
    return [
        Table(
            "One metric recorded",
            f"`metrics.record(name, value, step)` with a Cloud Logging of {_BACKEND_SECONDS * 1e3:.0f} ms a request."
            f" When it returns, ours is in the journal on disk ({runs[0]['bytes']} bytes a line), and is"
            " shipped meanwhile; 1.0.0's is in Cloud Logging, 1.0.10's in a queue in memory, W&B's in another process,"
            " MLflow's in a file. The bare append writes the same bytes in the same process, paced in turns.",
            rows,
        )
    ]


def _run(tracker: Tracker, tight: int, paced: int) -> dict[str, Any]:
    with run_cloud(logging_delay_seconds=_BACKEND_SECONDS) as cloud:
        run: dict[str, Any] = tracker.run(record_metrics, cloud, tight=tight, paced=paced)
    return run


def _sizes(tracker: Tracker, tight: int, paced: int) -> tuple[int, int]:
    """Return the sizes of the tight loop and the paced one; smaller for those that would take minutes."""
    if tracker.name == "1.0.0":
        return tight // 200, min(paced, 200)
    return tight // 20, paced // 4


_SHARES: dict[str, Callable[[list[float]], float]] = {
    "p50": statistics.median,
    "mean": statistics.fmean,
    "p99": lambda times: process.percentile(times, 0.99),
}


def _tight_row(
    runs: list[dict[str, Any]], others: dict[Tracker, dict[str, Any]], share: str, what: str, limit: float | None = None
) -> Row:
    of = _SHARES[share]
    mine, bare = (statistics.median(of(run["times"][key]) for run in runs) for key in ("tight", "bare tight"))
    return Row(
        what,
        seconds(mine),
        f"bare append {seconds(bare)}; {_compared(others, 'tight', share)}",
        f"{mine / bare:.1f} times bare",
        f"<= {seconds(limit)}" if limit else "",
        mine <= limit if limit else None,
    )


def _paced_row(runs: list[dict[str, Any]], others: dict[Tracker, dict[str, Any]], share: str) -> Row:
    of = _SHARES[share]
    found = [(of(run["times"]["paced"]), of(run["times"]["bare"])) for run in runs]
    ratio, mine, bare = sorted((mine / bare, mine, bare) for mine, bare in found)[len(found) // 2]
    return Row(
        f"paced {_PACE_SECONDS * 1e3:.0f} ms apart, {share}",
        seconds(mine),
        f"bare append {seconds(bare)}; {_compared(others, 'paced', share)}",
        f"{ratio:.1f} times bare",
        "<= 3 times bare",
        ratio <= 3,
    )


def _compared(others: dict[Tracker, dict[str, Any]], loop: str, share: str) -> str:
    return "; ".join(f"{tracker.name} {seconds(_SHARES[share](run['times'][loop]))}" for tracker, run in others.items())
