"""The metrics of the last second of a process that survive, by kind of end."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import process, trackers
from benchmarks.results import Row, Table, seconds
from benchmarks.run_cloud import RunCloud, run_cloud
from benchmarks.trackers import OURS, Tracker

_BACKEND_SECONDS = 0.03
_LAST_SECONDS = 1.0
_SIGNAL_SECONDS = 20.0
_LONGEST_SECONDS = 600.0

_WANDB_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _MIDDLE, _LAST = 1, 3, 4

_ENDINGS = {"exit": "sys.exit()", "term": "SIGTERM", "kill": "SIGKILL"}


@dataclass(frozen=True)
class Kept:
    """The values of one process's metrics that were kept.

    Attributes:
        recorded: How many calls it made.
        kept: The number of values that can be read: in Cloud Logging, or without a cloud on disk.
        synced: How many after the command that sends the rest; None where there is no such command.
        end_seconds: The time from the last call to the end of the process.
        sync_seconds: The time that the command took.
        has_ended: True if it ended for the intended reason.
    """

    recorded: int
    kept: int
    end_seconds: float
    has_ended: bool
    synced: int | None = None
    sync_seconds: float = 0.0


def main() -> NoReturn:
    """Record for a second, or a number of values, and end."""
    kind, urls, count, ending = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    results, sys.stdout = sys.stdout, sys.stderr
    trackers.prepare(kind, urls)
    record = trackers.start(kind)
    step, until = 0, time.monotonic() + _LAST_SECONDS
    while step < count and time.monotonic() < until:
        record("loss", step * 0.5, step)
        step += 1
    print(json.dumps({"recorded": step, "at": time.time()}), file=results, flush=True)
    if ending == "exit":
        sys.exit()
    os.kill(os.getpid(), signal.SIGTERM if ending == "term" else signal.SIGKILL)
    time.sleep(_SIGNAL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)  # As Kubernetes does with whoever does not end.
    raise AssertionError("unreachable")


def kept_in_files(kind: str, urls: dict[str, str], folder: str) -> int:
    """Return the number of values of the metric in the files of W&B or MLflow."""
    del urls
    if kind == "mlflow":
        (file,) = Path(folder).glob("mlruns/*/*/metrics/loss")
        return sum(len(line.split()) == 3 for line in file.read_text().splitlines())
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found]

    (file,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    records = (Record.FromString(data) for data in _leveldb_records(file.read_bytes()))
    return sum(record.WhichOneof("record_type") == "history" for record in records)


def _leveldb_records(log: bytes) -> Iterator[bytes]:
    """Yield the whole records of a log in LevelDB's format behind W&B's seven bytes.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    at, record = _WANDB_HEADER_BYTES, b""
    while at + _HEADER.size <= len(log):
        if _BLOCK_BYTES - at % _BLOCK_BYTES < _HEADER.size:
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        _, length, kind = _HEADER.unpack_from(log, at)
        at += _HEADER.size
        if kind == 0 or at + length > len(log):
            return
        record = (record if kind in (_MIDDLE, _LAST) else b"") + log[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield record


def measure(*, quick: bool) -> list[Table]:
    count = 10_000 if quick else 100_000
    rows = []
    for ending, what in _ENDINGS.items():
        mine = _end(OURS, count, ending)
        others = {tracker: _end(tracker, count, ending) for tracker in trackers.ALL[1:]}
        is_complete = max(mine.kept, mine.synced or 0) == mine.recorded
        rows.append(
            Row(
                what,
                _summary(mine),
                "; ".join(f"{tracker.name} {_summary(kept)}" for tracker, kept in others.items()),
                "",
                "all, now or by sync",
                is_complete,
            )
        )
    note = (
        f"Of up to {count:,} values that were recorded in the last second, those that have arrived in Cloud Logging,"
        f" which takes {_BACKEND_SECONDS * 1e3:.0f} ms a request, when the process has ended; of W&B and MLflow, those"
        " that are on the disk. Then `mldiagnostics sync` sends what the process could not. The time is from the last"
        f" call to the end of the process; one that has not ended {_SIGNAL_SECONDS:.0f} s after SIGTERM is killed."
    )
    return [Table("Metrics of the last second", note, rows)]


def _summary(kept: Kept) -> str:
    end = f"ended in {seconds(kept.end_seconds)}" if kept.has_ended else "**did not end**"
    synced = f", {kept.synced:,} after sync ({seconds(kept.sync_seconds)})" if kept.synced is not None else ""
    return f"{kept.kept:,} of {kept.recorded:,}{synced}, {end}"


def _end(tracker: Tracker, count: int, ending: str) -> Kept:
    with tempfile.TemporaryDirectory() as folder, run_cloud(logging_delay_seconds=_BACKEND_SECONDS) as cloud:
        settings = tracker.settings(cloud) | {"TMPDIR": folder, "ML_DIAGNOSTICS_DIR": folder}
        environment = process.environment_of_a_job(settings)
        reported, end_seconds, status = _run(tracker, tracker.urls(cloud), count, ending, environment)
        kept = _kept(tracker, cloud, folder)
        wanted = {"exit": 0, "term": -signal.SIGTERM, "kill": -signal.SIGKILL}[ending]
        found = Kept(reported["recorded"], kept, end_seconds, status == wanted)
        if tracker != OURS or kept == reported["recorded"]:
            return found
        started = time.perf_counter()
        _sync(Path(folder), environment)
        sync_seconds = time.perf_counter() - started
        synced = _kept(tracker, cloud, folder)
        return Kept(found.recorded, kept, end_seconds, found.has_ended, synced, sync_seconds)


def _run(
    tracker: Tracker, urls: dict[str, str], count: int, ending: str, environment: dict[str, str]
) -> tuple[dict[str, Any], float, int]:
    """Return the output of the process, the duration of its end in seconds, and its status."""
    python = str(process.reference_python_of(tracker.pins)) if tracker.pins else sys.executable
    command = [python, "-m", "benchmarks.metrics_kept", tracker.kind, json.dumps(urls), str(count), ending]
    done = subprocess.run(
        command,
        cwd=process.REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_SECONDS,
    )
    ended = time.time()
    if not done.stdout:
        raise RuntimeError(f"{tracker.name} recorded nothing:\n{done.stderr[-3000:]}")
    reported = json.loads(done.stdout)
    return reported, ended - reported["at"], done.returncode


def _kept(tracker: Tracker, cloud: RunCloud, folder: str) -> int:
    if tracker.kind in ("ours", "reference"):
        return cloud.steps("loss")
    return int(tracker.run(kept_in_files, folder=folder))


def _sync(folder: Path, environment: dict[str, str]) -> None:
    """Send what the process has left, as a user does."""
    (run,) = (path.name for path in (folder / "runs").iterdir() if path.is_dir())
    command = [sys.executable, "-m", "google_cloud_mldiagnostics.cli", "sync", run]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mldiagnostics sync ended with status {done.returncode}:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
