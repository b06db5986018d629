"""A clock that is set during a job changes no number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_goodput_measurement import goodput
from ml_goodput_measurement.partition import Bucket

TRAINER = """
import datetime, sys, time
from ml_goodput_measurement import goodput
recorder = goodput.GoodputRecorder("job", "goodput_job", True)
recorder.record_job_start_time(datetime.datetime.now())
shifts = [float(shift) for shift in sys.argv[1:]]
for step in range(30):
    if step % 10 == 5 and shifts:
        real, real_ns, shift = time.time, time.time_ns, shifts.pop(0)
        time.time = lambda real=real, shift=shift: real() + shift
        time.time_ns = lambda real=real_ns, shift=shift: real() + int(shift * 1e9)
    recorder.record_step_start_time(step)
    time.sleep(0.01)
now = datetime.datetime.fromtimestamp(time.time())
recorder.record_custom_badput_event_start_time(now, "check")
time.sleep(0.01)
recorder.record_custom_badput_event_end_time(datetime.datetime.fromtimestamp(time.time()), "check")
recorder.record_job_end_time(datetime.datetime.fromtimestamp(time.time()))
"""


@pytest.mark.parametrize(
    "shifts", [["-0.02"], ["-1"], ["-3600"], ["3600"], ["3600", "-3600"], ["-1", "2", "-5"]], ids=str
)
def test_a_clock_that_is_set_during_a_job_changes_no_number(shifts: list[str]) -> None:
    subprocess.run([sys.executable, "-c", TRAINER, *shifts], check=True, timeout=60, env=dict(os.environ))
    report = goodput.GoodputCalculator("job", "goodput_job").report()
    assert (report.running, report.steps_kept, report.last_step) == (False, 30, 29)
    assert (len(report.disruptions), len(report.attempts)) == (0, 1)
    assert 0.25e9 < report.wall_ns < 60e9
    assert report.custom.keys() == {"CHECK"}
    assert report.buckets[Bucket.PRODUCTIVE] + report.buckets[Bucket.PROGRAM_STARTUP] > 0.2e9


def test_a_recorder_with_closed_descriptors_writes_the_end_to_its_own_file(tmp_path: Path) -> None:
    program = """
import os, sys
from ml_goodput_measurement import goodput
recorder = goodput.GoodputRecorder("job", "goodput_job", True)
recorder.record_job_start_time()
recorder.record_step_start_time(0)
os.closerange(3, 64)
mine = [os.open(f"{sys.argv[1]}/{n}", os.O_RDWR | os.O_CREAT) for n in range(8)]
recorder.record_job_end_time()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert not goodput.GoodputCalculator("job", "goodput_job").report().running
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b""}
