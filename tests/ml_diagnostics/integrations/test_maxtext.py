"""A program that makes the calls of MaxText's goodput and diagnostics modules, as of 0.2.5, runs unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .recorded_jobs import activities, metrics, only_run

PROGRAM = """
import contextlib, sys

import google_cloud_mldiagnostics as mldiag
import numpy as np
from ml_goodput_measurement import goodput, monitoring

run_name = "maxtext"


def record(recorder, name, *args):
    function = getattr(recorder, name, None)
    if function:
        function(*args)


@contextlib.contextmanager
def maybe_record_goodput(recorder, event, *args):
    record(recorder, f"record_{event}_start_time", *args)
    completed = False
    try:
        yield
        completed = True
    finally:
        if completed:
            record(recorder, f"record_{event}_end_time", *args)


mldiag.machinelearning_run(
    name=f"{run_name}", run_group="group", configs={"steps": 3, "learning_rate": 0.25}, gcs_path="profiles",
    region="us-central1", environment="autopush", on_demand_xprof=False,
)
recorder = goodput.GoodputRecorder(run_name, f"goodput_{run_name}", True)
monitor = monitoring.GoodputMonitor(
    job_name=run_name, logger_name=f"goodput_{run_name}", tensorboard_dir="tensorboard", upload_interval=30,
    monitoring_enabled=True, include_badput_breakdown=True, include_step_deviation=True,
    step_deviation_interval_seconds=30, pathway_enabled=False,
    gcp_options=monitoring.GCPOptions(enable_gcp_goodput_metrics=True, enable_gcp_step_deviation_metrics=True),
)
monitor.start_goodput_uploader()
record(recorder, "record_job_start_time")
with maybe_record_goodput(recorder, "tpu_init"):
    pass
with maybe_record_goodput(recorder, "training_preparation"):
    pass
for step in np.arange(3):
    with maybe_record_goodput(recorder, "data_loading"):
        pass
    with maybe_record_goodput(recorder, "step", step):
        if step == 2 and "--fail" in sys.argv:
            raise ZeroDivisionError("no rows")
    mldiag.metrics.record("learning/loss", np.float32(0.5).item(), step=int(step))
    mldiag.metrics.record(mldiag.metric_types.MetricType.LOSS, np.float32(0.5).item(), step=int(step))
record(recorder, "record_job_end_time")
monitor.stop_goodput_uploader()
"""


ELASTIC = """
from ml_goodput_measurement import goodput_elastic, monitoring, monitoring_elastic

recorder = goodput_elastic.ElasticGoodputRecorder("maxtext", "goodput_maxtext", True)
monitor = monitoring_elastic.ElasticGoodputMonitor(
    include_slice_efficiency=True, job_name="maxtext", logger_name="goodput_maxtext", tensorboard_dir="tensorboard",
    upload_interval=30, monitoring_enabled=True, include_badput_breakdown=True, include_step_deviation=True,
    step_deviation_interval_seconds=30,
    gcp_options=monitoring.GCPOptions(enable_gcp_goodput_metrics=True, enable_gcp_step_deviation_metrics=True),
)
monitor.start_goodput_uploader()
recorder.record_job_start_time()
recorder.record_step_start_time(0)
recorder.record_step_end_time(0)
recorder.record_job_end_time()
monitor.stop_goodput_uploader()
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(ELASTIC if "--elastic" in arguments else PROGRAM)
    environment = {**os.environ, "ML_DIAGNOSTICS_RAISE": "0"}
    command = [sys.executable, "train.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def test_the_calls_of_maxtext_record_goodput_a_run_and_metrics(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert activities("maxtext") == ["start", "load", "step 0", "load", "step 1", "load", "step 2", "end"]
    assert sorted(metrics()["learning/loss"]) == sorted(metrics()["loss"]) == [0, 1, 2]
    assert only_run()["runPhase"] == "COMPLETED"
    assert "learning_rate" in str(only_run()["configs"])
    assert list(tmp_path.glob("tensorboard/**/events.*"))


def test_an_exception_ends_the_job_and_the_run_as_failed(tmp_path: Path) -> None:
    assert run(tmp_path, "--fail").returncode == 1
    assert activities("maxtext")[-2:] == ["step 2", "process failed ZeroDivisionError"]
    assert only_run()["runPhase"] == "FAILED"


def test_the_calls_of_an_elastic_job_are_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, "--elastic")
    assert done.returncode == 0, done.stderr
    assert activities("maxtext") == ["start", "step 0", "end"]
    assert list(tmp_path.glob("tensorboard/**/events.*"))
