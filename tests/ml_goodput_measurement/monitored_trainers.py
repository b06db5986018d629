"""Trainers with a monitor, in processes of their own, and what became of their helper processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_diagnostics_common.backoff import Backoff
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.monitor.settings import Upload
from ml_goodput_measurement.monitor.uploaders import Uploaders
from ml_goodput_measurement.monitoring import GoodputMonitor

from .tensorboard_points import Point, points

LONG_SECONDS = 30.0
"""Longer than anything takes that a test waits for."""

_HEAD = """
import atexit, os, signal, sys, time
from ml_goodput_measurement import goodput, monitoring

def train(steps):
    for step in range(*steps):
        recorder.record_step_start_time(step)
        time.sleep(0.002)

folder = sys.argv[1]
recorder = goodput.GoodputRecorder("job", "log", True)
recorder.record_job_start_time()
# It uploads nothing by itself within a test: what is found is the last point.
monitor = monitoring.GoodputMonitor("job", "log", folder, 1000, True, final_flush_timeout_seconds=20)

def helper():
    return monitor._uploaders.pid
"""


class Trainer:
    """Runs a program that has a `recorder` and a `monitor`."""

    def __init__(self, program: str, folder: Path, *, cwd: Path | None = None) -> None:
        script = folder.parent / f"{folder.name}-trainer.py"
        script.write_text(_HEAD + program)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )

    def line(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.rstrip("\n")

    def finish(self) -> tuple[str, str]:
        """Waits for its end, which must be a good one; what it printed, and what it logged."""
        output, errors = self.process.communicate(timeout=LONG_SECONDS)
        assert self.process.returncode == 0, errors
        return output, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LONG_SECONDS)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # It may end while it is checked.
        return False


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_alive(pid))


def goodput_points(folder: Path) -> list[Point]:
    """The points of goodput in a monitor's folder."""
    if not (folder / "goodput").exists():
        return []
    return [point for point in points(folder / "goodput") if point.tag == "goodput/goodput"]


def last_step(folder: Path) -> int:
    return goodput_points(folder)[-1].step


@contextmanager
def uploaders_of_ten_steps(folder: Path) -> Iterator[Uploaders]:
    """Uploaders in this process, with a helper process that is restarted at once; its job has ten steps."""
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time()
    for step in range(10):
        recorder.record_step_start_time(step)
        time.sleep(0.002)
    monitor = GoodputMonitor("job", "log", folder, 1000, True, final_flush_timeout_seconds=20)
    uploaders = Uploaders(monitor._settings, backoff=Backoff(0.01, 0.01))
    yield uploaders
    for upload in Upload:
        uploaders.stop(upload, flush=False)
