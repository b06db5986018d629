"""Trainers with a monitor, in processes of their own, and what became of their helper processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_diagnostics_common.backoff import Backoff
from ml_goodput_measurement._monitor.settings import Upload
from ml_goodput_measurement._monitor.uploaders import Uploaders
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.monitoring import GoodputMonitor

from ..waiting import Child, is_alive, wait_until
from .tensorboard_points import Point, points

FLUSH_SECONDS = 50.0
"""The time for a last point, from the start of its helper process: that has a low priority, and tests run beside it."""
_MOST_SECONDS = 100.0
"""The time for a trainer or a helper process: a last point, and starts of processes on a busy machine."""

_HEAD = f"""
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
monitor = monitoring.GoodputMonitor("job", "log", folder, 1000, True, final_flush_timeout_seconds={FLUSH_SECONDS})

def helper():
    return monitor._uploaders.pid
"""


class Trainer(Child):
    """A program that has a `recorder` and a `monitor`."""

    def __init__(self, program: str, folder: Path, *, cwd: Path | None = None) -> None:
        script = folder.parent / f"{folder.name}-trainer.py"
        script.write_text(_HEAD + program)
        super().__init__([sys.executable, "-W", "ignore:This process:DeprecationWarning", script, folder], cwd=cwd)

    def finish(self) -> tuple[str, str]:
        """Wait for its end, which must be a success; return what it printed and what it logged."""
        code, output, errors = self.end(_MOST_SECONDS)
        assert code == 0, errors
        return output, errors


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_alive(pid), _MOST_SECONDS)


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
    monitor = GoodputMonitor("job", "log", folder, 1000, True, final_flush_timeout_seconds=FLUSH_SECONDS)
    uploaders = Uploaders(monitor._settings, backoff=Backoff(0.01, 0.01))
    yield uploaders
    for upload in Upload:
        uploaders.stop(upload, flush=False)
