"""`mldiagnostics profile`: a job that runs is profiled from outside, and says so in its run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google_cloud_mldiagnostics.cli import main
from google_cloud_mldiagnostics.cli.profile import targets_of
from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.profiling.verification import read_xplane
from ml_diagnostics_common.environment import identity

from .told_runs import process, resource, view

Captured = pytest.CaptureFixture[str]

JOB = """
import sys, pathlib
from google_cloud_mldiagnostics import machinelearning_run, metrics
import jax, jax.numpy as jnp
run = machinelearning_run(name="profiled", on_demand_xprof=True)
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(64)
print(run.name, flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    x = step(x).block_until_ready()
"""


@contextlib.contextmanager
def running_job(tmp_path: Path) -> Iterator[str]:
    """A real JAX job that can be profiled; its run's id."""
    flag = tmp_path / "end"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [sys.executable, "-c", JOB, str(flag)], stdout=subprocess.PIPE, text=True, env=environ
    ) as job:
        try:
            assert job.stdout is not None
            yield job.stdout.readline().strip()
            flag.touch()
            job.wait(60)
        finally:
            job.kill()


def told(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def wait_until_it_can_be_profiled(run_id: str, capsys: Captured) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shown = json.loads(told(capsys, "show", run_id, "--format", "json")[1])
        if any(one["profiler_port"] for attempt in shown["attempts"] for one in attempt["processes"]):
            return
        time.sleep(0.2)
    raise AssertionError(f"{run_id} tells of no profiler")


def test_a_running_job_is_profiled_and_its_run_knows_the_profile(tmp_path: Path, capsys: Captured) -> None:
    with running_job(tmp_path) as run_id:
        wait_until_it_can_be_profiled(run_id, capsys)
        code, out, err = told(capsys, "profile", run_id, "--duration", "300", "--format", "json")
        assert (code, "profiling 1 process" in err) == (0, True)
        answer = json.loads(out)
        (folder,) = answer["folders"]
        (file,) = Path(folder).glob("*.xplane.pb")
        assert read_xplane(file).is_whole
        # By the name of its host, and for people; an unknown one is refused.
        code, out, _ = told(
            capsys, "profile", run_id, "--duration", "100", "--hosts", identity().host, "--session", "s2"
        )
        assert code == 0
        assert out.startswith("profile s2: 1 of 1 captured\n")
        assert f"xprof --logdir {folder.partition('/plugins/')[0]} --port 8791" in out
        assert told(capsys, "profile", run_id, "--hosts", "nobody")[0] == 1
    shown = json.loads(told(capsys, "show", run_id, "--format", "json")[1])
    assert [(one["session"], one["kind"], one["state"]) for one in shown["profiles"]] == [
        (answer["session"], "on_demand", "SUCCEEDED"),
        ("s2", "on_demand", "SUCCEEDED"),
    ]
    assert [len(one["hosts"]) for one in shown["profiles"]] == [1, 1]
    code, _, err = told(capsys, "profile", run_id)
    assert (code, "has ended" in err) == (1, True)


def test_who_is_asked_are_all_who_can_be_by_the_address_that_leads_there() -> None:
    here = identity().host
    shown = view(
        resource(),
        process("ACTIVE", 0, host=here, count=3, address="10.0.0.1", profiler_port=9999, capture_folder="/a"),
        process("ACTIVE", 0, host="far", index=1, count=3, address="10.0.0.2", profiler_port=7, capture_name="far-1"),
        process("ACTIVE", 0, host="old", index=2, count=3),
        now=1,
    )
    shown.gcs_path = "gs://bucket/x"
    assert [target[1:] for target in targets_of(shown, None)] == [
        ("localhost:9999", "/a", ""),
        ("10.0.0.2:7", "gs://bucket/x/run-1/plugins/profile", "far-1"),
    ]
    for name in ("far", "10.0.0.2", "10.0.0.2:7"):
        assert [target.address for target in targets_of(shown, [name])] == ["10.0.0.2:7"]
    assert targets_of(shown, ["other:99"])[0][1:] == ("other:99", "gs://bucket/x/run-1/plugins/profile", "")
    with pytest.raises(ProfilingError, match=r"no host 'old' .* it has .*far"):
        targets_of(shown, ["old"])


@pytest.mark.parametrize(
    ("phase", "words"), [("ACTIVE", "on_demand_xprof=True"), ("FAILED", "has ended"), ("COMPLETED", "has ended")]
)
def test_why_nobody_can_be_profiled_is_said(phase: str, words: str) -> None:
    with pytest.raises(ProfilingError, match=words):
        targets_of(view(resource(phase), process("ACTIVE", 0), now=1), None)


@pytest.mark.parametrize(
    "arguments", [["--duration", "0"], ["--duration", "x"], ["--session", "../a"], ["--hosts", ","]]
)
def test_what_cannot_be_asked_is_refused(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["profile", "run", *arguments])
    assert refused.value.code == 2
