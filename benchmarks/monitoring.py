"""The cost of a monitor: its construction in the trainer, and its ticks in the helper process."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import journalled, process
from benchmarks.job import JOB, LOG, MemoryLog, Training
from benchmarks.results import Row, Table, seconds

_NEW_STEPS = 10
_TICK_SECONDS = 10
_PROJECT = "project"
_CACHE_BYTES = 64 << 20
"""More than the machine's caches hold for one core."""


# --- Constructed ----------------------------------------------------------------------------------------


def construct() -> dict[str, float]:
    """Make a monitor and start its goodput uploader without a cloud; the same code for both."""
    folder = tempfile.mkdtemp()
    times: dict[str, float] = {}
    with _timed(times, "import"):
        from ml_goodput_measurement import monitoring

        make = monitoring.GoodputMonitor
    with _timed(times, "constructed"):
        monitor = make(JOB, LOG, folder, 30, monitoring_enabled=True, include_badput_breakdown=True)
    with _timed(times, "started"):
        monitor.start_goodput_uploader()
    with _timed(times, "stopped"):
        monitor.stop_goodput_uploader(skip_final_flush=True)
    return times


def construct_reference() -> dict[str, float]:
    """Do the same with credentials for Google's clients: the reference raises without them."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    google.auth.default = lambda *_, **__: (AnonymousCredentials(), _PROJECT)
    return construct()


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    times[name] = time.perf_counter() - started


# --- Ticks ----------------------------------------------------------------------------------------------


class _Clock:
    """Both clocks of a monitor, which go on by a tick at a time; at the last tick it is about now."""

    def __init__(self, ticks: int) -> None:
        self._seconds = time.time() - ticks * _TICK_SECONDS

    def seconds(self) -> float:
        return self._seconds

    def nanoseconds(self) -> int:
        return int(self._seconds * 1e9)

    def advance(self) -> None:
        self._seconds += _TICK_SECONDS


def tick(ticks: int, target: str, replica: str) -> dict[str, Any]:
    """Return the CPU seconds of ticks of the helper process, by what is exported; each after ten new steps.

    Args:
        ticks: How many of each kind.
        target: The address of Cloud Monitoring.
        replica: The label that distinguishes the time series of this run.
    """
    from ml_goodput_measurement._export.cloud_monitoring import CloudMonitoringExporter
    from ml_goodput_measurement._export.tensorboard import TensorBoardExporter
    from ml_goodput_measurement._monitor.settings import Upload
    from ml_goodput_measurement._monitor.sinks import Sink
    from ml_goodput_measurement._monitor.snapshot_schedule import SnapshotSchedule
    from ml_goodput_measurement.goodput import GoodputCalculator
    from ml_goodput_measurement.goodput_utils import GCPOptions

    job, clock = journalled.JournalledJob.resumed(), _Clock(ticks)
    folder = tempfile.mkdtemp()
    wants = {Upload.CUMULATIVE, Upload.DEVIATION}
    _pretend_exported(folder, job.clock_ns())
    options = GCPOptions(
        project_id=_PROJECT, location="zone", replica_id=replica, acc_type="tpu", enable_gcp_step_deviation_metrics=True
    )
    environ = {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING": target,
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "GCE_METADATA_HOST": "127.0.0.1:1",
    }
    os.environ.update(environ)
    cloud = CloudMonitoringExporter(JOB, options, environ=environ, clock_ns=clock.nanoseconds, monotonic=clock.seconds)
    sinks = {
        "snapshot": [],
        "snapshot, caches cold": [],
        "with TensorBoard": [
            Sink("TensorBoard", lambda: TensorBoardExporter(folder, JOB, include_badput_breakdown=True), wants)
        ],
        "with Cloud Monitoring": [Sink("Cloud Monitoring", lambda: cloud, wants)],
    }
    schedules = {
        name: SnapshotSchedule(
            GoodputCalculator(JOB, LOG, _clock_ns=job.clock_ns),
            sinks[name],
            interval_seconds=lambda _: _TICK_SECONDS,
            clock=clock.seconds,
        )
        for name in sinks
    }
    for schedule in schedules.values():
        schedule.set_uploads(dict.fromkeys(wants, ()), flush=False, flush_seconds=0)
    times: dict[str, list[float]] = {name: [] for name in schedules}
    step, cold = job.training.step, bytearray(_CACHE_BYTES)
    for number in range(ticks):
        step += _NEW_STEPS
        job.run(step)
        clock.advance()
        for name, schedule in schedules.items():
            if "cold" in name:
                cold[:] = bytes(_CACHE_BYTES)
            started = time.process_time()
            schedule.tick()
            assert schedule.wait_for_sinks(30)
            if number >= 5:  # The first ones import, connect and lay down what later ones use.
                times[name].append(time.process_time() - started)
    job.close()
    points = _points(folder)
    assert max(points["goodput/goodput"]) == step - 2, (step, points["goodput/goodput"])
    deviations = len(points["step_deviation"])
    assert _NEW_STEPS * ticks - 2 <= deviations <= _NEW_STEPS * ticks + 2, f"{deviations} deviations"
    return {"cpu": times, "step": step, "counts": cloud.counts.as_dict()}


def _pretend_exported(folder: str, until_ns: int) -> None:
    """Mark the deviations of the earlier steps as written to the folder's TensorBoard log."""
    from dataclasses import asdict

    from ml_diagnostics_common.event_files import SavedLog
    from ml_goodput_measurement._export.export_state import Progress, state_path

    output = Path(folder).resolve() / "goodput"
    output.mkdir()
    (output / "events.out.tfevents.0000000001.host.1").touch()  # Where there is no file, nothing was exported.
    path = state_path("tensorboard", JOB, str(output))
    path.parent.mkdir(parents=True, exist_ok=True)
    SavedLog(Progress(deviations_until_ns=until_ns)).save(path, asdict)


# --- Step deviations ------------------------------------------------------------------------------------


def deviate_ours(cycles: int) -> dict[str, Any]:
    """Export all deviations of a job's steps to TensorBoard, then those of every ten new steps."""
    from ml_goodput_measurement._export.tensorboard import TensorBoardExporter
    from ml_goodput_measurement.goodput import GoodputCalculator

    job = journalled.JournalledJob.resumed()
    calculator = GoodputCalculator(JOB, LOG, _clock_ns=job.clock_ns)
    folder, step = tempfile.mkdtemp(), job.training.step
    exporter = TensorBoardExporter(folder, JOB, include_badput_breakdown=False)

    def export() -> None:
        exporter(calculator.snapshot(cumulative=False, deviation=True))

    first: list[dict[str, float]] = []
    later: list[dict[str, float]] = []
    while not first or first[-1]["bytes"]:
        first.append(_cycle(export, folder))
    for _ in range(cycles):
        step += _NEW_STEPS
        job.run(step)
        later.append(_cycle(export, folder))
    job.close()
    expected = set(calculator.get_step_deviation())
    written = _points(folder)["step_deviation"]
    assert len(written) == len(set(written)), "a point was written twice"
    assert set(written) == expected, f"{len(written)} points of {len(expected)}"
    return {"first": first[:-1], "later": later}


def deviate_reference(steps: int, cycles: int) -> dict[str, Any]:
    """Write all deviations of the reference with tensorboardX in each cycle, as its uploader does."""
    from ml_goodput_measurement import goodput
    from tensorboardX import SummaryWriter

    training, log = Training(steps), MemoryLog()
    log.payloads += training.payloads(steps)
    folder = tempfile.mkdtemp()
    writer = SummaryWriter(folder)
    with tempfile.TemporaryDirectory() as cache_dir:
        calculator = goodput.GoodputCalculator(JOB, LOG, cloud_logger=log, cache_dir=cache_dir)

        def export() -> None:
            for step, deviation in calculator.get_step_deviation().items():
                writer.add_scalar("step_deviation", float(deviation), step)
            writer.flush()

        first = [_cycle(export, folder)]
        later = []
        for cycle in range(1, cycles + 1):
            log.payloads += training.payloads(steps + _NEW_STEPS * cycle)
            later.append(_cycle(export, folder))
    return {"first": first, "later": later}


def _cycle(export: Callable[[], None], folder: str) -> dict[str, float]:
    """CPU and wall seconds of an export, and by how many bytes the event files grew."""
    size, started, cpu_started = _size(folder), time.perf_counter(), time.process_time()
    export()
    cpu, wall = time.process_time() - cpu_started, time.perf_counter() - started
    return {"cpu": cpu, "wall": wall, "bytes": _size(folder) - size}


def _size(folder: str) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("events.*"))


def _points(folder: str) -> dict[str, list[int]]:
    """Return the steps with points in event files, by tag."""
    from tensorboardX.proto.event_pb2 import Event

    points: dict[str, list[int]] = {}
    for file in Path(folder).rglob("events.*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                points.setdefault(value.tag, []).append(event.step)
    return points


# --- The server -----------------------------------------------------------------------------------------


def serve() -> None:
    """Serve a cloud until stdin ends; print its address on stdout, and then the time series that it received."""
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
    from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer

    os.nice(19)  # A cloud runs elsewhere, and uses no CPU of the measured process.
    with CloudLoggingServer(_PROJECT) as log, CloudMonitoringServer(_PROJECT) as server:
        environment = {**log.environment(), **server.environment(), "GCE_METADATA_HOST": "127.0.0.1:1"}
        print(json.dumps(environment), flush=True)
        sys.stdin.read()
        steps = server.series('metric.type = ends_with("/max_productive_steps")')
        print(json.dumps([[int(point["value"]["int64Value"]) for point in series["points"]] for series in steps]))


@contextmanager
def loopback_cloud(sent: list[list[int]]) -> Iterator[dict[str, str]]:
    """Cloud Logging and Cloud Monitoring in a process of their own.

    Args:
        sent: At the end has the last steps that Cloud Monitoring received, by series, newest first.

    Yields:
        The environment variables that lead there.
    """
    with process.server(__name__) as (environment, server):
        try:
            yield environment
        finally:
            output, _ = server.communicate(timeout=60)
            with contextlib.suppress(ValueError):
                sent += json.loads(output)


# --- The tables -----------------------------------------------------------------------------------------


def measure(*, quick: bool) -> list[Table]:
    return [_constructed(quick=quick), _ticks(quick=quick), _deviations(quick=quick)]


def _constructed(*, quick: bool) -> Table:
    environment = {"ML_DIAGNOSTICS_BACKEND": "auto"}
    mine = [process.ours(construct, environment=environment) for _ in range(3 if quick else 9)]
    theirs = process.reference(construct_reference)
    rows = []
    for name, what in (
        ("constructed", "`GoodputMonitor(...)`"),
        ("started", "`start_goodput_uploader()`, in the trainer"),
        ("stopped", "`stop_goodput_uploader(skip_final_flush=True)` at once"),
        ("import", "`from ml_goodput_measurement import monitoring`, and its name"),
    ):
        took = statistics.median(run[name] for run in mine)
        has_limit = name == "constructed"
        rows.append(
            Row(
                what,
                seconds(took),
                seconds(theirs[name]),
                f"{theirs[name] / took:,.1f} times faster",
                "< 50 ms" if has_limit else "",
                took < 0.05 if has_limit else None,
            )
        )
    note = (
        "In a fresh process; backend `auto`, and no cloud is to be found. The reference is given credentials, without"
        " which it raises; its import of google-auth is not counted."
    )
    return Table("Monitor constructed without a cloud", note, rows)


def _ticks(*, quick: bool) -> Table:
    steps, ticks = (100_000, 50) if quick else (1_000_000, 200)
    sent: list[list[int]] = []
    with tempfile.TemporaryDirectory() as folder, loopback_cloud(sent) as server:
        environment = {"ML_DIAGNOSTICS_DIR": folder}
        process.ours(journalled.write, environment=environment, steps=steps)
        process.ours(_save_state, environment=environment)
        # Cloud detection is that of Google's machines, except for the credentials.
        environment["ML_DIAGNOSTICS_BACKEND"] = "auto"
        target = server["CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING"]
        run = process.ours(tick, environment=environment, ticks=ticks, target=target, replica="0")
    assert sent == [[run["step"] - 2 - _NEW_STEPS * number for number in range(ticks)]], (sent, run["counts"])
    p50 = {name: statistics.median(times) for name, times in run["cpu"].items()}
    rows = []
    for name, times in run["cpu"].items():
        is_snapshot = name.startswith("snapshot")
        over = "" if is_snapshot else f"{seconds(max(p50[name] - p50['snapshot'], 0))} more than the snapshot"
        rows.append(
            Row(
                f"{name}, {steps:,} steps",
                f"{seconds(p50[name])} p50, {seconds(process.percentile(times, 0.99))} p99",
                "",
                over,
                "p50 < 2 ms" if is_snapshot else "",
                p50[name] < 2e-3 if is_snapshot else None,
            )
        )
    note = (
        "CPU of a tick as the helper process does it: what ten new steps have added to the journal on disk is read,"
        " and goodput, badput and step deviation go to the sinks. Cloud Monitoring is a loopback server in another"
        " process."
    )
    return Table("A monitor's tick", note, rows)


def _save_state() -> None:
    from ml_goodput_measurement import goodput

    calculator = goodput.GoodputCalculator(JOB, LOG)
    calculator.get_job_goodput()
    calculator.save_state()


def _deviations(*, quick: bool) -> Table:
    steps = 20_000 if quick else 100_000
    with tempfile.TemporaryDirectory() as folder:
        environment = {"ML_DIAGNOSTICS_DIR": folder}
        process.ours(journalled.write, environment=environment, steps=steps)
        mine = process.ours(deviate_ours, environment=environment, cycles=50)
    theirs = process.reference(deviate_reference, steps=steps, cycles=1)
    rows = []
    for name, what in (("first", "all steps, once"), ("later", "each further cycle, ten new steps")):
        ours, reference = mine[name], theirs[name]
        if name == "first":
            took, size = (sum(cycle[key] for cycle in ours) for key in ("cpu", "bytes"))
            what += f", in {len(ours)} calls"
        else:
            took, size = (statistics.median(cycle[key] for cycle in ours) for key in ("cpu", "bytes"))
        their_time, their_size = (statistics.median(cycle[key] for cycle in reference) for key in ("cpu", "bytes"))
        rows.append(
            Row(
                what,
                f"{seconds(took)}, {_size_text(size)}",
                f"{seconds(their_time)}, {_size_text(their_size)}",
                f"{their_time / took:,.1f} times faster, 1/{their_size / size:,.0f} of the bytes",
            )
        )
    note = (
        f"A job of {steps:,} steps: CPU and bytes of event files. The reference's deviations are written with"
        " tensorboardX, all of them in each cycle, as its uploader does."
    )
    return Table("Step deviation to TensorBoard", note, rows)


def _size_text(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.2f} KiB"


if __name__ == "__main__":
    serve()
