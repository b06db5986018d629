"""Start a run: its import, and the time of `machinelearning_run`, with a cloud, with a broken one and without."""

from __future__ import annotations

import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import process, trackers
from benchmarks.results import Row, Table, seconds
from benchmarks.run_cloud import NOWHERE, Addresses, run_cloud
from benchmarks.trackers import OURS, REFERENCES, Tracker

_POLLS = 2
_GIVE_UP_SECONDS = 20.0
_NOT_BACK = "not back"
_SOON_SECONDS = 0.2
_NO_NETWORK_SECONDS = 1.1
_IMPORT_SECONDS = 0.1


# --- In the process that is measured ----------------------------------------------------------------------


def load(kind: str, urls: dict[str, str]) -> dict[str, float]:
    """Import what users import."""
    del urls
    before = process.resident_mib()
    started = time.perf_counter()
    trackers.load(kind)
    return {"seconds": time.perf_counter() - started, "mib": process.resident_mib() - before}


def start_run(kind: str, urls: dict[str, str]) -> dict[str, Any]:
    """Start a run, with all imported before and JAX running, and wait for it at most for a bounded time.

    Returns:
        How many seconds it took; the error that it raised, as users see it; and when it was over, for callers that
        know how long the process takes to end.
    """
    import jax

    jax.devices()
    if urls:
        trackers.prepare(kind, urls)
    trackers.load(kind)
    give_up = threading.Timer(_GIVE_UP_SECONDS, _give_up)
    give_up.daemon = True
    give_up.start()
    error = ""
    started = time.perf_counter()
    try:
        trackers.start(kind)
    except Exception as raised:
        error = type(raised).__name__
    took = time.perf_counter() - started
    give_up.cancel()
    return {"seconds": took, "error": error, "at": time.time()}


def _give_up() -> None:
    os.write(1, json.dumps({"seconds": _GIVE_UP_SECONDS, "error": _NOT_BACK, "at": time.time()}).encode())
    os._exit(0)


# --- The tables -------------------------------------------------------------------------------------------


def measure(*, quick: bool) -> list[Table]:
    repetitions = 2 if quick else 5
    return [_loaded(repetitions), _started(repetitions)]


def _loaded(repetitions: int) -> Table:
    runs = {tracker: [tracker.run(load) for _ in range(repetitions)] for tracker in trackers.ALL}
    took = {tracker: statistics.median(run["seconds"] for run in found) for tracker, found in runs.items()}
    mib = {tracker: statistics.median(run["mib"] for run in found) for tracker, found in runs.items()}
    mine = took.pop(OURS), mib.pop(OURS)
    rows = [
        Row(
            "`from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof, metric_types`",
            seconds(mine[0]),
            "; ".join(f"{tracker.name} {seconds(value)}" for tracker, value in took.items()),
            f"{took[REFERENCES[-1]] / mine[0]:.1f} times faster than {REFERENCES[-1].name}",
            "<= 100 ms",
            mine[0] <= _IMPORT_SECONDS,
        ),
        Row(
            "memory added by it",
            f"{mine[1]:.0f} MiB",
            "; ".join(f"{tracker.name} {value:.0f} MiB" for tracker, value in mib.items()),
        ),
    ]
    return Table("Import for a run", "In a fresh process, over Python with the benchmark's few modules.", rows)


def _started(repetitions: int) -> Table:
    with run_cloud(polls=_POLLS) as cloud:
        rows = [_row("an operation that is done at its second poll", cloud, repetitions, trackers.ALL, _SOON_SECONDS)]
        phases = cloud.phases()
    assert set(phases) == {"COMPLETED"}, phases
    refused = Addresses(f"http://{NOWHERE}", f"http://{NOWHERE}")
    rows.append(_row("a network that refuses", refused, repetitions, [OURS, *REFERENCES], _NO_NETWORK_SECONDS))
    with _black_hole() as silent:
        rows.append(_row("a network that never answers", silent, repetitions, [OURS, *REFERENCES], _NO_NETWORK_SECONDS))
    rows.append(_row("neither credentials nor a cloud", None, repetitions, [OURS, *REFERENCES], _NO_NETWORK_SECONDS))
    note = (
        "`machinelearning_run(name, project, region)` in a fresh process in which all is imported and JAX runs, and"
        " the corresponding call of others. In parentheses the exception, and how long the process then took to end."
        f" One that is not back within {_GIVE_UP_SECONDS:.0f} s is given up."
    )
    return Table("A run started", note, rows)


def _row(what: str, cloud: Addresses | None, repetitions: int, measured: list[Tracker], limit: float) -> Row:
    runs = {tracker: _start(tracker, cloud, repetitions) for tracker in measured}
    mine = statistics.median(run["seconds"] for run in runs[OURS])
    return Row(
        what,
        _summary(runs.pop(OURS)),
        "; ".join(f"{tracker.name} {_summary(found)}" for tracker, found in runs.items()),
        "",
        f"<= {seconds(limit)}",
        mine <= limit,
    )


def _start(tracker: Tracker, cloud: Addresses | None, repetitions: int) -> list[dict[str, Any]]:
    """Return the result of each repetition; only one for a call that does not return."""
    environment = {"ML_DIAGNOSTICS_BACKEND": "auto", "GCE_METADATA_HOST": NOWHERE, "JAX_PLATFORMS": "cpu"}
    runs: list[dict[str, Any]] = []
    while len(runs) < repetitions and not (runs and runs[0]["error"] == _NOT_BACK):
        run = tracker.run(start_run, cloud, environment)
        runs.append(run | {"end": time.time() - run["at"]})
    return runs


def _summary(runs: list[dict[str, Any]]) -> str:
    took, end = (statistics.median(run[key] for run in runs) for key in ("seconds", "end"))
    error: str = runs[0]["error"]
    if error == _NOT_BACK:
        return error
    return f"{seconds(took)} ({f'{error}; ' if error else ''}ended in {seconds(end)})"


@contextmanager
def _black_hole() -> Iterator[Addresses]:
    """Run a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield Addresses(url, url)
