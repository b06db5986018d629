"""The main job, real in all its parts: JAX trains and is profiled, Orbax saves, SIGKILL kills, and all of it is known.

Once as the README's demo runs it, without a cloud; then against a cloud on loopback that fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Status
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import AttemptEnd, Bucket, JobReport

from ..loopback.control_plane import ControlPlaneServer
from ..pictures import texts_by_color

for needed in ("jax", "optax", "orbax", "sklearn"):
    if find_spec(needed) is None:  # Importing them would take each worker three seconds.
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)  # half a minute each where nothing else runs

EXAMPLES = Path(__file__).parents[2] / "examples"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
TEXT_OF_PICTURES = {
    "timeline": {"productive", "wasted progress", "infrastructure recovery", "checkpoint save"},
    "curves": {"loss", "step_time", "attempt 2"},
    "hang": {"all_reduce", "next_batch", "train"},
}
STEPS, CHECKPOINT_EVERY, KILL_AFTER, PRINT_EVERY = 60, 20, 50, 10
METRICS = "ml_diagnostics_metric"

# The job, killed when it prints a step: one that reads its output may do so only when the job has ended.
KILLED = f"""
import builtins, os, runpy, signal, sys

def show(text, **options):
    write(text, **options)
    if text.startswith("step ") and int(text.split()[1]) >= {KILL_AFTER}:
        os.kill(os.getpid(), signal.SIGKILL)

write, builtins.print = print, show
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# The process that a scheduler would start some day: it records nothing, and ships what others left behind.
LATER_PROCESS = """
import sys
from ml_goodput_measurement import goodput
goodput.GoodputRecorder(sys.argv[1], f"goodput_{sys.argv[1]}", True, background_grace_period_s=30)
"""


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a job with this diagnostics folder, and only the given settings of ours."""
    ours = ("ML_DIAGNOSTICS_", "CLOUDSDK_", "GOOGLE_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_DIR": str(folder), **settings}


def train(run_name: str, checkpoints: Path, environ: Mapping[str, str], *, kill: bool) -> None:
    """Runs `train_digits.py` to its end, or has it killed in mid-training, after at least one checkpoint."""
    command = [sys.executable, *(["-c", KILLED] if kill else []), str(EXAMPLES / "train_digits.py")]
    command += ["--run-name", run_name]
    command += ["--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY), "--batch-size", "64"]
    command += ["--print-every", str(PRINT_EVERY), "--checkpoint-dir", str(checkpoints)]
    command += ["--tensorboard-dir", str(checkpoints.parent / "tensorboard")]
    command += ["--profile-at", "5", "--gcs-path", str(checkpoints.parent / "profiles")]
    job = subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, timeout=240, check=False)
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


def ask(environ: Mapping[str, str], *command: str) -> Any:
    """Return the output of one of our commands, from JSON."""
    program = str(Path(sys.executable).with_name(command[0]))
    asked = subprocess.run([program, *command[1:], "--format", "json"], env=environ, capture_output=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)


def entries_in_journal(folder: Path, *logs: str) -> set[str]:
    """The insertIds of all that the job recorded."""
    readers = [JournalReader(log, root=folder) for log in logs]
    return {entry.insert_id for reader in readers for batch in reader.read_new() for entry in batch}


def check_the_life_of_a_killed_job(report: JobReport, steps: int = STEPS) -> None:
    """Check the properties of the job that do not depend on the machine's speed."""
    assert sum(report.buckets.values()) == report.wall_ns
    assert sum(piece.end_ns - piece.start_ns for piece in report.timeline) == report.wall_ns
    assert (report.last_step, report.steps_kept, report.running) == (steps - 1, steps, False)
    assert [attempt.ended for attempt in report.attempts] == [AttemptEnd.LOST, AttemptEnd.JOB_END]

    [disruption] = report.disruptions
    killed, resumed = report.attempts
    assert killed.last_step is not None
    assert resumed.first_step in range(CHECKPOINT_EVERY, steps, CHECKPOINT_EVERY)
    assert disruption.steps_lost == killed.last_step - resumed.first_step + 1  # type: ignore[operator]

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


def check_the_run_of_a_killed_job(run: dict[str, Any]) -> None:
    """Check the page of the run."""
    assert run["state"] == "COMPLETED"
    assert [(attempt["number"], attempt["state"]) for attempt in run["attempts"]] == [(1, "FAILED"), (2, "COMPLETED")]
    assert "without recording its end" in run["attempts"][0]["reason"]
    assert run["configs"]["software"]["framework"] == "JAX"
    assert run["configs"]["hardware"]["device_type"] == "cpu"
    measured = {metric["metric"]: metric for metric in run["metrics"]}
    assert {"loss", "learning_rate", "step_time", "throughput", "test_accuracy"} <= set(measured)
    assert {"host_cpu_utilization", "host_memory_utilization", "process_memory"} <= set(measured)
    assert measured["loss"]["last"] < measured["loss"]["mean"]  # It has learned.


def check_the_pictures(folder: Path, run_name: str) -> None:
    """Check that they are those of the documentation; a browser takes those of the page of the profiles."""
    has_browser = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    files = [file for file in PICTURES.iterdir() if file.is_file()]
    shown = {file.name for file in files if has_browser or not file.name.startswith("profile")}
    assert {file.name for file in folder.iterdir()} == shown
    for name in shown:
        assert (folder / name).read_bytes().startswith(b"<?xml" if name.endswith(".svg") else b"\x89PNG"), name
        assert 0.3 < (folder / name).stat().st_size / (PICTURES / name).stat().st_size < 3, name
    for style in ("", "-dark"):
        for subject, expected in TEXT_OF_PICTURES.items():
            texts = set().union(*texts_by_color(folder / f"{subject}{style}.svg").values())
            texts = {text.partition(" (")[0] for text in texts}
            assert texts >= expected | ({run_name} if subject != "hang" else set()), (subject, style)


def test_the_demo_trains_kills_resumes_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 200  # Enough that the profile from outside is taken before the kill.
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--out", str(tmp_path / "out"), "--steps", str(steps)]
    command += ["--profile-at", "5", "--profile-after", "20", "--kill-after", "60"]
    command += ["--checkpoint-every", str(CHECKPOINT_EVERY)]
    demo = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=240, check=False)
    assert demo.returncode == 0, demo.stderr

    [profiles] = (tmp_path / "out" / "profiles").iterdir()
    run_name = profiles.name
    check_the_pictures(tmp_path / "out" / "pictures", run_name)
    assert re.search(rf"^{run_name}: \d+\.\d\d % goodput$", demo.stdout, re.MULTILINE)
    assert re.search(rf"^{run_name}: COMPLETED$", demo.stdout, re.MULTILINE)
    journals = re.search(r"^Journal +(.+)\n +(.+)$", demo.stdout, re.MULTILINE)
    assert journals is not None
    assert all(list(Path(journal).glob("*.jsonl")) for journal in journals.groups())
    assert list((tmp_path / "out" / "tensorboard" / run_name / "goodput").glob("events.out.tfevents.*"))

    environ = environment(tmp_path / "out" / "ml-diagnostics", ML_DIAGNOSTICS_BACKEND="local")
    check_the_life_of_a_killed_job(report_in(environ, run_name, monkeypatch), steps)
    report = ask(environ, "goodput", "report", run_name)
    assert [disruption["number"] for disruption in report["disruptions"]] == [1]
    run = ask(environ, "mldiagnostics", "show", run_name)
    check_the_run_of_a_killed_job(run)

    # One profile by the job, one from outside; both are at the path in the last lines, where XProf opens them.
    assert [(profile["kind"], profile["state"]) for profile in run["profiles"]] == [
        ("programmatic", "SUCCEEDED"),
        ("on_demand", "SUCCEEDED"),
    ]
    profiles_line = re.search(r"^Profiles +xprofiler serve -l (\S+)$", demo.stdout, re.MULTILINE)
    assert profiles_line is not None
    logdir = profiles_line[1]
    assert re.search(r"^Step time +\d", demo.stdout, re.MULTILINE)
    found = list(Path(logdir).glob("plugins/profile/*/*.xplane.pb"))
    assert {file.parent.name for file in found} == {profile["session"] for profile in run["profiles"]}

    # Nothing but out/ was written to, and nothing leaves the machine, not even when a later process finds a cloud.
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    with CloudLoggingServer() as server:
        ship_the_rest(run_name, environment(tmp_path / "out" / "ml-diagnostics", **server.environment()))
        assert server.entries() == []


def test_a_cloud_that_fails_still_gets_the_job_to_the_nanosecond(
    cloud_logging_server: CloudLoggingServer,
    control_plane_server: ControlPlaneServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, job = cloud_logging_server, tmp_path / "job"
    redirected = {**control_plane_server.environment(), **server.environment()}
    over_rest = environment(job, ML_DIAGNOSTICS_BACKEND="cloud", **redirected)
    over_grpc = {**over_rest, "ML_DIAGNOSTICS_LOGGING_TRANSPORT": "grpc"}

    server.faults.always(Status(503), on="write")
    control_plane_server.faults.sometimes(Status(503), probability=1 / 4, seed=3)
    train("digits", tmp_path / "checkpoints", over_grpc, kill=True)
    assert server.entries() == []  # killed before anything was shipped
    assert control_plane_server.run("digits")["runPhase"] == "ACTIVE"  # as far as it knows

    server.faults.clear()  # from now on half of the requests fail: some before, some after they did their work
    server.faults.sometimes(Status(503), probability=1 / 4, on="write", seed=1)
    server.faults.sometimes(Status(503, after_apply=True), probability=1 / 3, on="write", seed=2)
    train("digits", tmp_path / "checkpoints", over_rest, kill=False)
    ship_the_rest("digits", over_rest)
    sync = [str(Path(sys.executable).with_name("mldiagnostics")), "sync", "digits"]
    subprocess.run(sync, env=over_rest, check=True, timeout=60)

    shipped = [entry["insertId"] for entry in server.entries()]
    assert len(shipped) == len(set(shipped))
    assert set(shipped) == entries_in_journal(job, "goodput_digits", METRICS)

    of_the_journal = report_in(environment(job, ML_DIAGNOSTICS_BACKEND="local"), "digits", monkeypatch)
    check_the_life_of_a_killed_job(of_the_journal)
    for number, cloud in enumerate((over_rest, over_grpc)):
        elsewhere = cloud | {"ML_DIAGNOSTICS_DIR": str(tmp_path / f"elsewhere-{number}")}
        assert report_in(elsewhere, "digits", monkeypatch) == of_the_journal
        assert report_in(cloud, "digits", monkeypatch) == of_the_journal  # of the union of both

    kept = control_plane_server.run("digits")
    assert (kept["runPhase"], kept["labels"]["attempt"]) == ("COMPLETED", "2")
    elsewhere = over_rest | {"ML_DIAGNOSTICS_DIR": str(tmp_path / "elsewhere-2")}
    check_the_run_of_a_killed_job(ask(elsewhere, "mldiagnostics", "show", "digits", "--project", server.project))
