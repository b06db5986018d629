"""The examples in the README of the public package work unchanged: only their function bodies are indented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..waiting import wait_until
from .tensorboard_points import Point, points

# The configuration that every snippet of the README takes for granted.
_CONFIG = """
import datetime, sys, time
from collections.abc import Sequence
import jax
import numpy as np

class config:
    run_name = "run-7"
    steps = 30
    monitor_goodput = True
    tensorboard_dir = sys.argv[1]
    goodput_upload_interval_seconds = 3600

start_step = 0
"""

_RECORD = """
from ml_goodput_measurement import goodput
goodput_logger_name = f'goodput_{config.run_name}'
goodput_recorder = goodput.GoodputRecorder(job_name=config.run_name, logger_name=goodput_logger_name, logging_enabled=(jax.process_index() == 0))

def main(argv: Sequence[str]) -> None:
 # Initialize configs…
 goodput_recorder.record_job_start_time(datetime.datetime.now())
 # TPU Initialization and device scanning…
 # Set up other things for the main training loop…
 # Main training loop
 train_loop(config)
 goodput_recorder.record_job_end_time(datetime.datetime.now())

def train_loop(config, state=None):
 # Set up mesh, model, state, checkpoint manager…

 # Initialize functional train arguments and model parameters…

 # Define the compilation

 for step in np.arange(start_step, config.steps):
   goodput_recorder.record_step_start_time(step)
   # Training step…
   time.sleep(0.002)

 return state
"""  # noqa: E501

_MONITOR = """
from ml_goodput_measurement import goodput
logger_name = f'goodput_{config.run_name}'

goodput_logger_name = f'goodput_{config.run_name}'
goodput_monitoring_enabled = config.monitor_goodput and jax.process_index() == 0 # Check for configs whether or not the enable monitoring.

goodput_monitor = goodput.GoodputMonitor(job_name=config.run_name, logger_name=logger_name, tensorboard_dir=config.tensorboard_dir, upload_interval=config.goodput_upload_interval_seconds, monitoring_enabled=goodput_monitoring_enabled)

goodput_monitor.start_goodput_uploader()
"""  # noqa: E501

_ASK = """
from ml_goodput_measurement import goodput
goodput_logger_name = f'goodput_{config.run_name}' # You can choose your own logger name.
goodput_calculator = goodput.GoodputCalculator(job_name=config.run_name, logger_name=goodput_logger_name)
total_goodput = goodput_calculator.get_job_goodput()
print(f"Total job goodput: {total_goodput:.2f}%")
"""


def run(program: str, folder: Path) -> str:
    """Run the snippets as a script, like their readers; return its output."""
    script = folder.parent / "script.py"
    script.write_text(_CONFIG + program, encoding="utf-8")
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    completed = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert "Traceback" not in completed.stderr
    return completed.stdout


def answered(folder: Path) -> float:
    """The goodput that another process reads, in percent."""
    answer = re.fullmatch(r"Total job goodput: (\d+\.\d\d)%\n", run(_ASK, folder))
    assert answer
    return float(answer[1])


def test_a_job_that_is_recorded_as_shown_is_asked_about_as_shown_by_another_process(folder: Path) -> None:
    run(_RECORD + "\nmain(sys.argv)\n", folder)
    assert 0 < answered(folder) <= 100


def test_a_job_that_is_monitored_as_shown_and_just_ends_is_in_tensorboard(folder: Path) -> None:
    run(_RECORD + _MONITOR + "\nmain(sys.argv)\n", folder)

    def shown() -> list[Point]:
        return [point for point in points(folder / "goodput") if point.tag == "goodput/goodput"]

    wait_until(lambda: (folder / "goodput").is_dir() and bool(shown()))
    (point,) = shown()
    assert point.step == 29
    assert point.value == pytest.approx(answered(folder), abs=0.0051)
