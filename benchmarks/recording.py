"""One step recorded: in a tight loop, and paced as training paces it, with caches cold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.job import JOB, LOG
from benchmarks.results import Row, Table, seconds

_PACE_SECONDS = 0.005


def record_ours(tight: int, paced: int) -> dict[str, Any]:
    """Record with our recorder on disk, beside a bare append of the same bytes to a file in the same folder."""
    from ml_goodput_measurement import goodput

    recorder = goodput.GoodputRecorder(JOB, LOG, logging_enabled=True)
    recorder.record_step_start_time(0)
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    (segment,) = root.glob("journal/*/*.jsonl")
    line = b"\n" + segment.read_bytes().rpartition(b"\n")[2]
    bare = os.open(root / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def append(step: int) -> None:
        os.write(bare, line)

    record = recorder.record_step_start_time
    rates = {"bare": _tight(append, tight), "recorded": _tight(record, tight)}
    times = _paced({"bare": append, "recorded": record}, paced)
    written = sum(file.read_bytes().count(b"\n") for file in root.glob("journal/*/*.jsonl"))
    assert written == tight + paced + 1, f"{written} entries in the journal"
    return {"rates": rates, "times": times, "bytes": len(line)}


def record_reference(tight: int, paced: int) -> dict[str, Any]:
    """Record with the reference's recorder and its real logger, over a transport that sends nothing."""
    import google.cloud.logging
    from google.auth.credentials import AnonymousCredentials

    client = google.cloud.logging.Client(project="project", credentials=AnonymousCredentials(), _use_grpc=False)
    client._logging_api = _NoTransport()
    google.cloud.logging.Client = lambda *_, **__: client  # type: ignore[assignment, misc]
    os.environ["GCE_METADATA_HOST"] = "127.0.0.1:1"
    from ml_goodput_measurement import goodput

    recorder = goodput.GoodputRecorder(JOB, LOG, logging_enabled=True)
    record = recorder.record_step_start_time
    times = _paced({"recorded": record}, paced)
    rate = _tight(record, tight)
    recorder.flush()
    assert client._logging_api.entries == tight + paced, f"{client._logging_api.entries} entries sent"
    return {"rates": {"recorded": rate}, "times": times}


class _NoTransport:
    entries = 0

    def write_entries(self, entries: Any, **_: Any) -> None:
        self.entries += len(list(entries))


def _tight(function: Callable[[int], None], count: int) -> float:
    """Return the calls per second."""
    started = time.perf_counter()
    for step in range(count):
        function(step)
    return count / (time.perf_counter() - started)


def _paced(functions: dict[str, Callable[[int], None]], count: int) -> dict[str, list[float]]:
    """Return the seconds of each call; the functions take turns, with a pause before each call."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for step in range(count):
        for name, function in functions.items():
            time.sleep(_PACE_SECONDS)
            started = time.perf_counter_ns()
            function(step)
            times[name].append((time.perf_counter_ns() - started) / 1e9)
    return times


def measure(*, quick: bool) -> list[Table]:
    tight, paced = (50_000, 300) if quick else (300_000, 2_000)
    runs = [process.ours(record_ours, tight=tight, paced=paced) for _ in range(1 if quick else 3)]
    theirs = process.reference(record_reference, tight=tight // 10, paced=paced)
    rate = sorted(run["rates"]["recorded"] for run in runs)[len(runs) // 2]
    bare_rate = sorted(run["rates"]["bare"] for run in runs)[len(runs) // 2]
    their_rate = theirs["rates"]["recorded"]
    rows = [
        Row(
            "tight loop",
            f"{rate:,.0f}/s",
            f"bare append {bare_rate:,.0f}/s; reference {their_rate:,.0f}/s",
            f"1/{bare_rate / rate:.1f} of bare; {rate / their_rate:.0f} times the reference's",
            ">= 300,000/s",
            rate >= 300_000,
        )
    ]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ratios = []
        for run in runs:
            mine, bare = (process.percentile(run["times"][key], share) for key in ("recorded", "bare"))
            ratios.append((mine / bare, mine, bare))
        ratio, mine, bare = sorted(ratios)[len(ratios) // 2]
        reference = process.percentile(theirs["times"]["recorded"], share)
        rows.append(
            Row(
                f"paced 5 ms apart, {name}",
                seconds(mine),
                f"bare append {seconds(bare)}; reference {seconds(reference)}",
                f"{ratio:.1f} times bare; 1/{reference / mine:.1f} of the reference",
                "<= 3 times bare",
                ratio <= 3,
            )
        )
    mine, bare = (max(max(run["times"][key]) for run in runs) for key in ("recorded", "bare"))
    rows.append(
        Row(
            "paced 5 ms apart, max",
            seconds(mine),
            f"bare append {seconds(bare)}; reference {seconds(max(theirs['times']['recorded']))}",
        )
    )
    return [
        Table(
            "One step recorded",
            f"`record_step_start_time`, in the journal on disk when it returns ({runs[0]['bytes']} bytes a line); the"
            " bare append writes the same bytes in the same process, in turns. The reference hands its entry to"
            " google-cloud-logging's background thread, with a transport that answers at once.",
            rows,
        )
    ]
