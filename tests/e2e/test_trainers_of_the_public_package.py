"""A trainer that was written for the public package at 0.2.3 runs unchanged, and its figures are right.

The trainers in `trainers/` use its whole surface as the popular ones do; they know nothing of this project.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_goodput_measurement import goodput, goodput_elastic
from ml_goodput_measurement.partition import Bucket, JobReport
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TRAINERS = Path(__file__).parent / "trainers"
WORKLOAD = "compute.googleapis.com/workload/"


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """The environment of a job whose diagnostics folder this is: of ours only what is given."""
    ours = ("ML_DIAGNOSTICS_", "CLOUDSDK_", "GOOGLE_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "ML_DIAGNOSTICS_DIR": str(folder), **settings}


def run(trainer: str, *arguments: object, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAINERS / trainer), *map(str, arguments)]
    return subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=100, check=False)


def use(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    """Asks from here on as in a job's environment."""
    monkeypatch.delenv("ML_DIAGNOSTICS_BACKEND", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard reads: by tag, the last value at each step; each point is found once."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    for tag, points in found.items():
        assert len(set(points)) == len(points), f"a point of {tag} was written twice"
    return {tag: dict(points) for tag, points in found.items()}


def check_partition(report: JobReport) -> None:
    assert sum(report.buckets.values()) == report.wall_ns


def test_a_maxtext_like_trainer_runs_without_a_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = environment(tmp_path / "diagnostics", ML_DIAGNOSTICS_BACKEND="local")
    killed = run("maxtext_like.py", "run-7", tmp_path / "logs", 0, 60, "--die", environ=environ)
    assert killed.returncode == -signal.SIGKILL
    done = run("maxtext_like.py", "run-7", tmp_path / "logs", 40, 60, environ=environ)
    assert (done.returncode, done.stdout) == (0, "loss 0.1\n"), done.stderr

    use(monkeypatch, environ)
    calculator = goodput.GoodputCalculator("run-7", "goodput_run-7")
    percent, breakdown, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
    report = calculator.report()
    check_partition(report)
    assert (report.running, last_step, len(report.disruptions)) == (False, 99, 1)
    assert report.disruptions[0].steps_lost == 20
    assert breakdown[goodput.BadputType.WASTED_PROGRESS_FROM_DISRUPTION] > 0
    assert 0 < percent < 100

    seen = scalars(tmp_path / "logs" / "goodput")
    # The last point is taken before the monitor stops, the end of the job recorded after it: its wall time is longer.
    assert percent - 0.5 <= seen["goodput/goodput"][99] < 100
    assert seen["badput/wasted_progress_from_disruption"][99] > 0
    assert set(range(99)) <= set(seen["step_deviation"])
    assert not list((tmp_path / "logs").glob("*.tfevents*"))


def test_a_maxtext_like_trainer_runs_with_the_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CloudLoggingServer() as logs, CloudMonitoringServer(project=logs.project) as metrics:
        environ = environment(tmp_path / "diagnostics", **{**logs.environment(), **metrics.environment()})
        done = run("maxtext_like.py", "run-8", tmp_path / "logs", 0, 100, environ=environ)
        assert (done.returncode, done.stdout) == (0, "loss 0.1\n"), done.stderr
        series = {one["metric"]["type"].removeprefix(WORKLOAD) for one in metrics.series()}
        assert series >= {
            "goodput_time",
            "badput_time",
            "disruptions",
            "max_productive_steps",
            "step_time_deviation",
            "total_elapsed_time",
            "performance",
            "interval_goodput",
            "interval_badput",
        }
        (total,) = metrics.series(f'metric.type="{WORKLOAD}goodput_time"')
        assert total["resource"]["type"] == "compute.googleapis.com/Workload"
        assert total["resource"]["labels"]["workload_id"] == "run-8"

        # On a machine of its own, from Cloud Logging alone.
        use(monkeypatch, {**environ, "ML_DIAGNOSTICS_DIR": str(tmp_path / "elsewhere")})
        elsewhere = goodput.GoodputCalculator("run-8", "goodput_run-8").report()
        use(monkeypatch, environ)
        here = goodput.GoodputCalculator("run-8", "goodput_run-8").report()
        assert elsewhere.buckets == here.buckets
        assert here.last_step == 99


def test_an_axlearn_like_trainer_is_elastic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CloudLoggingServer() as logs, CloudMonitoringServer(project=logs.project) as metrics:
        environ = environment(tmp_path / "diagnostics", **{**logs.environment(), **metrics.environment()})
        done = run("axlearn_like.py", "ax", tmp_path / "logs", 60, environ=environ)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        (efficiency,) = metrics.series(
            f'metric.type="{WORKLOAD}stepping_slice_efficiency" AND metric.labels.window_type="CUMULATIVE"'
        )
        assert efficiency["resource"]["labels"] == {
            "location": "europe-west4",
            "workload_id": "ax",
            "replica_id": "3",
            **{name: value for name, value in efficiency["resource"]["labels"].items() if name == "project_id"},
        }
        assert 0.5 < efficiency["points"][-1]["value"]["doubleValue"] < 1
        use(monkeypatch, environ)
        calculator = goodput_elastic.ElasticGoodputCalculator("ax", "goodput_logger_ax")
        report = calculator.report()
        check_partition(report)
        assert report.buckets[Bucket.ELASTIC_SLICE_DOWN] >= 0.2e9
        assert set(report.custom) == {"EVAL_STEP"}
        assert 0.5 < calculator.get_job_goodput_details()["stepping_slice_efficiency"] < 1
    seen = scalars(tmp_path / "logs" / "goodput")
    assert seen["badput/elastic_slice_down"][59] > 0
    assert "badput/custom_badput_events/eval_step" in seen
