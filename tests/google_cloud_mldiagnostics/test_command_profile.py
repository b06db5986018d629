"""`mldiagnostics profile`: a running job is profiled from outside, and its run shows the profile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._cli.profile import targets_of
from google_cloud_mldiagnostics.cli import main
from google_cloud_mldiagnostics.exceptions import ProfilingError
from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.xplane import read_xplane

from ..jax_jobs import may_crash
from ..waiting import free_port, wait_until
from .sample_entries import process, resource, view

Captured = pytest.CaptureFixture[str]

JOB = """
import sys, pathlib
flag, port, index = sys.argv[1:]
import jax, jax.numpy as jnp
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(index))
from google_cloud_mldiagnostics import machinelearning_run
run = machinelearning_run(name="profiled", on_demand_xprof=True)
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(64)
print(run.name, flush=True)
while not pathlib.Path(flag).exists():
    x = step(x).block_until_ready()
"""


@contextlib.contextmanager
def running_job(tmp_path: Path) -> Iterator[str]:
    """Run a real JAX job of two processes, as on two hosts; return its run's id."""
    flag = tmp_path / "end"
    port = free_port()
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with contextlib.ExitStack() as processes:
        started = [
            processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", JOB, str(flag), str(port), str(index)],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environ,
                )
            )
            for index in range(2)
        ]
        try:
            names = {process.stdout.readline().strip() for process in started if process.stdout is not None}
            assert len(names) == 1
            yield names.pop()
            flag.touch()
            for process in started:
                process.wait(60)
        finally:
            for process in started:
                process.kill()


def run_command(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def wait_until_it_can_be_profiled(run_id: str, capsys: Captured) -> None:
    def profilers() -> int:
        shown = json.loads(run_command(capsys, "show", run_id, "--format", "json")[1])
        return sum(bool(one["profiler_port"]) for attempt in shown["attempts"] for one in attempt["processes"])

    wait_until(lambda: profilers() == 2, 60)


@may_crash
def test_a_running_job_is_profiled_on_all_hosts_at_once_and_its_run_knows_the_profile(
    tmp_path: Path, capsys: Captured
) -> None:
    with running_job(tmp_path) as run_id:
        wait_until_it_can_be_profiled(run_id, capsys)
        code, out, err = run_command(capsys, "profile", run_id, "--duration", "300", "--format", "json")
        assert (code, "Profiling 2 processes" in err) == (0, True), (out, err)
        answer = json.loads(out)
        (folder,) = answer["folders"]
        files = list(Path(folder).glob("*.xplane.pb"))
        assert len(files) == 2
        assert all(read_xplane(file).is_whole for file in files)
        # One process by its address, with text output; an unknown host is refused.
        address = answer["hosts"][1]["address"]
        code, out, err = run_command(
            capsys, "profile", run_id, "--duration", "100", "--hosts", address, "--session", "s2"
        )
        assert code == 0, (out, err)
        assert out.startswith("profile s2: 1 of 1 captured\n")
        assert f"  open  xprofiler serve -l {folder.partition('/plugins/')[0]}" in out.splitlines()
        assert run_command(capsys, "profile", run_id, "--hosts", "nowhere")[0] == 3
    shown = json.loads(run_command(capsys, "show", run_id, "--format", "json")[1])
    assert sorted((one["session"], one["kind"], one["state"], len(one["hosts"])) for one in shown["profiles"]) == [
        (answer["session"], "on_demand", "SUCCEEDED", 2),
        ("s2", "on_demand", "SUCCEEDED", 1),
    ]
    code, _, err = run_command(capsys, "profile", run_id)
    assert (code, "has ended" in err) == (1, True)


def test_all_processes_that_can_be_profiled_are_asked_at_their_reachable_addresses() -> None:
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
    with pytest.raises(NotFoundError, match=r"no host 'old' .* it has .*far"):
        targets_of(shown, ["old"])


@pytest.mark.parametrize(
    ("phase", "words"), [("ACTIVE", "on_demand_xprof=True"), ("FAILED", "has ended"), ("COMPLETED", "has ended")]
)
def test_the_error_states_why_no_process_can_be_profiled(phase: str, words: str) -> None:
    with pytest.raises(ProfilingError, match=words):
        targets_of(view(resource(phase), process("ACTIVE", 0), now=1), None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--duration", "0"],
        ["--duration", "x"],
        ["--session", "../a"],
        ["--hosts", ","],
        ["--host-tracer-level=-1"],
        ["--host-tracer-level", "4"],
        ["--device-tracer-level", "2"],
        ["--python-tracer-level", "2"],
    ],
)
def test_invalid_options_are_a_usage_error(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["profile", "run", *arguments])
    assert refused.value.code == 2
