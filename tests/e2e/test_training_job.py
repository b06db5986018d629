"""The main job, real in all its parts: JAX trains, Orbax saves, SIGKILL kills, and the ledger knows it all.

Once as the README's demo runs it, without a cloud; then against a Cloud Logging on loopback that fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Status
from ml_goodput_measurement.calculator import GoodputCalculator
from ml_goodput_measurement.partition import AttemptEnd, Bucket, JobReport

for needed in ("jax", "optax", "orbax.checkpoint", "sklearn"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.timeout(300)  # half a minute each where nothing else runs

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, CHECKPOINT_EVERY, KILL_AFTER, PRINT_EVERY = 60, 20, 40, 10

# The process that a scheduler would start some day: it records nothing, and ships what others left behind.
LATER_PROCESS = """
import sys
from ml_goodput_measurement import goodput
goodput.GoodputRecorder(sys.argv[1], f"goodput_{sys.argv[1]}", True, background_grace_period_s=30)
"""


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """The environment of a job whose diagnostics folder this is: of ours only what is given."""
    ours = ("ML_DIAGNOSTICS_", "CLOUDSDK_", "GOOGLE_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_DIR": str(folder), **settings}


def train(run_name: str, checkpoints: Path, environ: Mapping[str, str], *, kill: bool) -> None:
    """Runs `train_digits.py` to its end, or kills it in mid-training, after at least one checkpoint."""
    command = [sys.executable, str(EXAMPLES / "train_digits.py"), "--run-name", run_name]
    command += ["--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY), "--batch-size", "64"]
    command += ["--print-every", str(PRINT_EVERY), "--checkpoint-dir", str(checkpoints)]
    command += ["--tensorboard-dir", str(checkpoints.parent / "tensorboard")]
    with subprocess.Popen(command, env=dict(environ), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            step = re.match(r"step +(\d+)", line)
            if kill and step and int(step[1]) >= KILL_AFTER:
                job.kill()
    assert job.returncode == (-signal.SIGKILL if kill else 0)


def ship_the_rest(run_name: str, environ: Mapping[str, str]) -> None:
    subprocess.run([sys.executable, "-c", LATER_PROCESS, run_name], env=dict(environ), check=True, timeout=60)


def report_in(environ: Mapping[str, str], run_name: str, monkeypatch: pytest.MonkeyPatch) -> JobReport:
    """The job's report as seen from an environment."""
    with monkeypatch.context() as patched:
        for name in [name for name in os.environ if name not in environ]:
            patched.delenv(name)
        for name, value in environ.items():
            patched.setenv(name, value)
        return GoodputCalculator(run_name, f"goodput_{run_name}").report()


def entries_in_journal(folder: Path, run_name: str) -> set[str]:
    """The insertIds of all that the job recorded."""
    reader = JournalReader(f"goodput_{run_name}", root=folder)
    return {entry.insert_id for batch in reader.read_new() for entry in batch}


def check_the_life_of_a_killed_job(report: JobReport) -> None:
    """What must be true of the job whatever the machine's speed."""
    assert sum(report.buckets.values()) == report.wall_ns
    assert sum(piece.end_ns - piece.start_ns for piece in report.timeline) == report.wall_ns
    assert (report.last_step, report.steps_kept, report.running) == (STEPS - 1, STEPS, False)
    assert [attempt.ended for attempt in report.attempts] == [AttemptEnd.LOST, AttemptEnd.JOB_END]

    [disruption] = report.disruptions
    killed, resumed = report.attempts
    assert killed.last_step is not None
    assert resumed.first_step in range(CHECKPOINT_EVERY, STEPS, CHECKPOINT_EVERY)
    assert disruption.steps_lost == killed.last_step - resumed.first_step + 1

    spent = {bucket for bucket, ns in report.buckets.items() if ns}
    assert spent >= {
        Bucket.PRODUCTIVE,
        Bucket.WASTED_PROGRESS,
        Bucket.INFRASTRUCTURE_RECOVERY,
        Bucket.TPU_INITIALIZATION,
        Bucket.TRAINING_PREP,
        Bucket.DATA_LOADING_SYNC,
        Bucket.PROGRAM_STARTUP,
        Bucket.CHECKPOINT_SAVE,
        Bucket.CHECKPOINT_RESTORE,
    }
    assert report.buckets[Bucket.UNKNOWN] < 0.1 * report.wall_ns
    assert report.buckets[Bucket.IN_FLIGHT] == 0
    assert report.estimated_ns > 0  # the step in which it was killed has no end


def test_the_demo_trains_kills_resumes_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--out", str(tmp_path / "out"), "--steps", str(STEPS)]
    command += ["--kill-after", str(KILL_AFTER), "--checkpoint-every", str(CHECKPOINT_EVERY)]
    demo = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=240, check=False)
    assert demo.returncode == 0, demo.stderr

    [picture] = (tmp_path / "out").glob("*.png")
    run_name = picture.stem
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert re.search(rf"^{run_name}: \d+\.\d\d % goodput$", demo.stdout, re.MULTILINE)
    journal = re.search(r"^Journal +(.+)$", demo.stdout, re.MULTILINE)
    assert journal is not None
    assert list(Path(journal[1]).glob("*.jsonl"))
    assert list((tmp_path / "out" / "tensorboard" / run_name / "goodput").glob("events.out.tfevents.*"))

    environ = environment(tmp_path / "out" / "ml-diagnostics", ML_DIAGNOSTICS_BACKEND="local")
    check_the_life_of_a_killed_job(report_in(environ, run_name, monkeypatch))
    goodput = [str(Path(sys.executable).with_name("goodput")), "report", run_name, "--format", "json"]
    told = json.loads(subprocess.run(goodput, env=environ, capture_output=True, check=True, timeout=60).stdout)
    assert [disruption["number"] for disruption in told["disruptions"]] == [1]

    # Nothing but out/ was written to, and nothing leaves the machine, not even when a later process finds a cloud.
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    with CloudLoggingServer() as server:
        ship_the_rest(run_name, environment(tmp_path / "out" / "ml-diagnostics", **server.environment()))
        assert server.entries() == []


def test_a_cloud_that_fails_comes_to_know_the_job_to_the_nanosecond(
    cloud_logging_server: CloudLoggingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, job = cloud_logging_server, tmp_path / "job"
    over_grpc = environment(job, ML_DIAGNOSTICS_BACKEND="cloud", **server.environment())
    over_rest = {name: value for name, value in over_grpc.items() if name != "ML_DIAGNOSTICS_LOGGING_GRPC"}

    server.faults.always(Status(503), on="write")
    train("digits", tmp_path / "checkpoints", over_grpc, kill=True)
    assert server.entries() == []  # killed before anything was shipped

    server.faults.clear()  # from now on half of the requests fail: some before, some after they did their work
    server.faults.sometimes(Status(503), probability=1 / 4, on="write", seed=1)
    server.faults.sometimes(Status(503, after_apply=True), probability=1 / 3, on="write", seed=2)
    train("digits", tmp_path / "checkpoints", over_rest, kill=False)
    ship_the_rest("digits", over_rest)

    shipped = [entry["insertId"] for entry in server.entries()]
    assert len(shipped) == len(set(shipped))
    assert set(shipped) == entries_in_journal(job, "digits")

    of_the_journal = report_in(environment(job, ML_DIAGNOSTICS_BACKEND="local"), "digits", monkeypatch)
    check_the_life_of_a_killed_job(of_the_journal)
    for number, cloud in enumerate((over_rest, over_grpc)):
        elsewhere = cloud | {"ML_DIAGNOSTICS_DIR": str(tmp_path / f"elsewhere-{number}")}
        assert report_in(elsewhere, "digits", monkeypatch) == of_the_journal
        assert report_in(cloud, "digits", monkeypatch) == of_the_journal  # of the union of both
