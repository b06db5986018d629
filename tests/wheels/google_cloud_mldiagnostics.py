"""Run in an empty environment with the wheel and common: a run, its metrics, the host measured, and the command."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import google_cloud_mldiagnostics
from google_cloud_mldiagnostics import machinelearning_run, metric_types, metrics, xprof
from google_cloud_mldiagnostics.custom_types import exceptions

assert "site-packages" in google_cloud_mldiagnostics.__file__

with tempfile.TemporaryDirectory() as folder:
    os.environ.update(ML_DIAGNOSTICS_DIR=folder, ML_DIAGNOSTICS_BACKEND="local", ML_DIAGNOSTICS_RAISE="1")
    run = machinelearning_run("wheel", configs={"epochs": 3}, metrics_record_interval_sec=0.2)
    for step in range(3):
        metrics.record(metric_types.MetricType.LOSS, 1.0 / (step + 1), step=step)
    time.sleep(1.0)
    with contextlib.suppress(exceptions.ProfilingError), xprof():  # There is nothing to profile with.
        pass
    run.finish()

    command = [str(Path(sys.executable).with_name("mldiagnostics"))]
    shown = subprocess.run(
        [*command, "metrics", run.name, "--format", "json"], capture_output=True, text=True, check=True
    )
    names = json.dumps(json.loads(shown.stdout))
    assert "loss" in names, names
    assert "host_cpu_utilization" in names, names
    picture = [*command, "metrics", run.name, "--plot", f"{folder}/plot.png"]
    plot = subprocess.run(picture, capture_output=True, text=True, check=False)
    assert plot.returncode != 0
    assert "[plot]" in plot.stderr, plot.stderr
    profile = [sys.executable, "-m", "google_cloud_mldiagnostics.commands.collect_profile", "--help"]
    assert "--hosts" in subprocess.run(profile, capture_output=True, text=True, check=True).stdout
print("google_cloud_mldiagnostics: runs, records, measures and shows")
