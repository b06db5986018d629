"""A trainer that was written for the public package at 0.2.3 runs unchanged, and its numbers are right.

The trainers in `trainers/` use its whole surface as the popular ones do; they know nothing of this project.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_goodput_measurement import goodput, goodput_elastic
from ml_goodput_measurement.partition import Bucket, JobReport
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ..ml_goodput_measurement import oracle

TRAINERS = Path(__file__).parent / "trainers"
WORKLOAD = "compute.googleapis.com/workload/"


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a job with this diagnostics folder, and only the given settings of ours."""
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


class Scalar(NamedTuple):
    value: float
    time_ns: int


def scalars(folder: Path) -> dict[str, dict[int, Scalar]]:
    """Read what TensorBoard reads: by tag, the last value at each step; each point is found once."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {}
    for tag in read.Tags()["scalars"]:
        events = read.Scalars(tag)
        points = [(event.step, event.value) for event in events]
        assert len(set(points)) == len(points), f"a point of {tag} was written twice"
        found[tag] = {event.step: Scalar(event.value, round(event.wall_time * 1e9)) for event in events}
    return found


def check_partition(report: JobReport) -> None:
    assert sum(report.buckets.values()) == report.wall_ns


def check_last_points(folder: Path, log: str, diagnostics: Path, last_step: int) -> None:
    """Compare the last points with what the trainer had recorded when they were taken, as the oracle counts it.

    An export reads the log first and the clock later: the wall time that the shares are of ends between the last
    entry that was read and the time of the point. Seconds are compared, which do not depend on it.
    """
    last = {tag: points[last_step] for tag, points in scalars(folder).items() if last_step in points}
    productive = last["goodput/goodput"]
    entries = [entry for batch in JournalReader(log, root=diagnostics).read_new() for entry in batch]
    payloads = [dict(entry.payload) for entry in entries if entry.timestamp_ns <= productive.time_ns]
    truth = oracle.judge(payloads, productive.time_ns)
    assert truth is not None
    assert (truth.running, truth.last_step) == (True, last_step)
    expected_ns = {f"badput/{bucket.lower()}": ns for bucket, ns in truth.buckets.items()}
    productive_ns = expected_ns.pop("badput/productive")
    wall_ns = productive_ns / (productive.value / 100)
    last_event_ns = max(oracle.Facts(payloads).moments)
    rounding = 1 + 1e-6  # of values in single precision
    assert (last_event_ns - truth.start) / rounding <= wall_ns <= (productive.time_ns - truth.start) * rounding
    expected_ns["badput/data_loading_async"] = truth.data_loading_async
    for unfinished in ("badput/in_flight_step", "badput/unknown"):  # They grow with the wall time.
        expected_ns.pop(unfinished, None)
    exported_ns = {tag: point.value / 100 * wall_ns for tag, point in last.items() if tag.startswith("badput/")}
    other_ns = exported_ns.pop("badput/other")
    # The oracle and the ledger may round a moment to different microseconds, and loads of data are hundreds of moments.
    assert {tag: ns for tag, ns in exported_ns.items() if ns} == pytest.approx(expected_ns, rel=1e-5, abs=50_000)
    background_ns = truth.data_loading_async  # Loads while steps run: this is part of no partition.
    assert productive_ns + sum(exported_ns.values()) - background_ns + other_ns == pytest.approx(wall_ns, rel=1e-5)


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
    assert breakdown[goodput.BadputType.WASTED_PROGRESS_FROM_DISRUPTION] > 0  # type: ignore[operator]
    assert 0 < percent < 100

    check_last_points(tmp_path / "logs" / "goodput", "goodput_run-7", tmp_path / "diagnostics", last_step)
    seen = scalars(tmp_path / "logs" / "goodput")
    assert seen["badput/wasted_progress_from_disruption"][99].value > 0
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
        newest = efficiency["points"][0]  # Older ones may be from before the job lost a slice.
        assert 0.5 < newest["value"]["doubleValue"] < 1
        use(monkeypatch, environ)
        calculator = goodput_elastic.ElasticGoodputCalculator("ax", "goodput_logger_ax")
        report = calculator.report()
        check_partition(report)
        assert report.buckets[Bucket.ELASTIC_SLICE_DOWN] >= 0.2e9
        assert set(report.custom) == {"EVAL_STEP"}
        assert 0.5 < calculator.get_job_goodput_details()["stepping_slice_efficiency"] < 1
    seen = scalars(tmp_path / "logs" / "goodput")
    assert seen["badput/elastic_slice_down"][59].value > 0
    assert "badput/custom_badput_events/eval_step" in seen
