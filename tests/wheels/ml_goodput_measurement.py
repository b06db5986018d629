"""Run in an empty environment with the wheel and common: record, calculate, report, monitor."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_goodput_measurement
from ml_goodput_measurement import goodput
from ml_goodput_measurement.src import goodput as goodput_by_its_second_name

assert goodput_by_its_second_name is goodput
assert "site-packages" in ml_goodput_measurement.__file__

with tempfile.TemporaryDirectory() as folder:
    os.environ.update(ML_DIAGNOSTICS_DIR=folder, ML_DIAGNOSTICS_BACKEND="local", ML_DIAGNOSTICS_RAISE="1")
    recorder = goodput.GoodputRecorder("wheel", "goodput_wheel", logging_enabled=True)
    recorder.record_job_start_time(1_000_000_000.0)
    for step in range(9):
        recorder.record_step_start_time(step, 1_000_000_010.0 + 10 * step)
    recorder.record_job_end_time(1_000_000_100.0)

    percent, badput, last_step = goodput.GoodputCalculator("wheel", "goodput_wheel").get_job_goodput(True)
    assert (round(percent, 6), last_step) == (90.0, 8), (percent, last_step)

    command = [str(Path(sys.executable).with_name("goodput")), "report", "wheel"]
    report = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    json.loads(report.stdout)
    plot = subprocess.run([*command, "--plot", f"{folder}/plot.png"], capture_output=True, text=True, check=False)
    assert plot.returncode != 0
    assert "[plot]" in plot.stderr, plot.stderr

    monitor = goodput.GoodputMonitor("wheel", "goodput_wheel", f"{folder}/logs", 30, monitoring_enabled=True)
    monitor.start_goodput_uploader()
    monitor.stop_goodput_uploader()
    assert list(Path(folder, "logs", "goodput").glob("events.out.tfevents.*"))
    json.loads(
        Path(ml_goodput_measurement.__file__).with_name("dashboards").joinpath("goodput_dashboard.json").read_text()
    )
print("ml_goodput_measurement: records, calculates, reports and monitors")
