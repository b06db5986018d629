"""A trainer of PyTorch/XLA, real in all its parts, on the CPU: `nox -s torch-xla`, with wheels of 7 GB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.environment import diagnostics_directory

from ..waiting import free_port

pytest.importorskip("torch_xla", reason="torch_xla is not installed: `nox -s torch-xla` has it")

pytestmark = pytest.mark.timeout(300)

TRAINER = str(Path(__file__).parent / "trainers" / "torch_xla_like.py")
STEPS = 8


def environment() -> dict[str, str]:
    return {**os.environ, "PJRT_DEVICE": "CPU", "ML_DIAGNOSTICS_RAISE": "0", "OMP_NUM_THREADS": "1"}


def start(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *prefix, TRAINER, "--steps", str(STEPS), *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(job: subprocess.Popen[str]) -> str:
    output, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert "could not be recorded" not in errors
    return output


def command(*arguments: str) -> str:
    """Run one of our commands, and return what it prints."""
    code = "import sys; from importlib.metadata import entry_points as e; "
    code += "sys.exit(next(iter(e(group='console_scripts', name=sys.argv.pop(1)))).load()())"
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def only_run() -> Path:
    (run,) = (diagnostics_directory() / "runs").iterdir()
    return run


def shown() -> dict[str, Any]:
    return dict(json.loads(command("mldiagnostics", "show", only_run().name, "--format", "json")))


def losses() -> list[int]:
    """The steps of which there is a loss."""
    lines = command("mldiagnostics", "metrics", only_run().name, "loss", "--format", "csv").splitlines()
    column = lines[0].split(",").index("step")
    return sorted(int(line.split(",")[column]) for line in lines[1:])


def await_line(job: subprocess.Popen[str], text: str) -> None:
    assert job.stdout is not None
    for line in job.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"it ended without {text!r}: {job.stderr.read() if job.stderr else ''}")


def test_every_loss_is_recorded_and_the_run_is_of_pytorch() -> None:
    end(start("--profile"))
    assert losses() == list(range(2 * STEPS))
    run = shown()
    software = run["configs"]["software"]
    assert (software["framework"], software["framework_version"]) == ("PYTORCH", software["torch_xla_version"])
    assert run["configs"]["hardware"]["accelerator_type"] == "cpu"
    counts = {metric["metric"]: metric["count"] for metric in run["metrics"]}
    assert (counts["loss"], counts["final_loss"]) == (2 * STEPS, 1)
    assert run["state"] == "COMPLETED"
    assert json.loads(command("goodput", "report", "linear", "--format", "json"))["job_name"] == "linear"


def test_a_profile_of_the_program_shows_the_steps_that_steptrace_marks() -> None:
    end(start("--profile"))
    summary = json.loads(command("xprofiler", "summary", str(only_run() / "profiles"), "--format", "json"))
    assert len(summary["steps"]) >= STEPS - 2  # XProf leaves out the first and the last, of which it may not see all.


def test_a_profile_on_demand_is_captured_from_outside(tmp_path: Path) -> None:
    port, stop = free_port(), tmp_path / "stop"
    job = start("--serve-port", str(port), "--train-until", str(stop))
    await_line(job, "training")
    time.sleep(1)  # The server starts beside the job.
    command(
        *("xprofiler", "capture", "-f", "pytorch", "-o", "local", "-n", f"localhost:{port}"),
        *("-d", "500", "-l", str(tmp_path / "profiles")),
    )
    stop.touch()
    end(job)
    summary = json.loads(command("xprofiler", "summary", str(tmp_path / "profiles/tensorboard"), "--format", "json"))
    assert len(summary["steps"]) >= 2


def test_two_ranks_of_torchrun_are_one_run() -> None:
    end(start(prefix=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")))
    run = json.loads((only_run() / "run.json").read_text())
    (attempt,) = run["attempts"]
    assert sorted(process["process_index"] for process in attempt["processes"]) == [0, 1]
    assert (run["runPhase"], losses()) == ("COMPLETED", list(range(STEPS)))


def test_a_hang_shows_the_line_where_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_JOB", "stuck")
    job = start("--hang")
    await_line(job, "hanging")
    time.sleep(3)  # A trace is taken each second.
    job.terminate()
    job.communicate(timeout=60)
    assert "wait_for_batch" in command("tpu-stacks", "show", "--job", "stuck")
    assert job.returncode != 0
    assert losses() == list(range(STEPS))
