"""The processes that torchrun starts are one run: by their environment, else by the store of torchrun's agent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._identity import identify, process_position, workload_of

from . import run_programs as programs
from .run_programs import PREAMBLE

STANDALONE = {
    "TORCHELASTIC_RUN_ID": "32dc140a-3324-4c9b-8e19-a5bf4d5a150a",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "34805",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "2",
}
PLAIN = STANDALONE | {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}


def rank(
    index: int, base: Mapping[str, str], folder: str = "/tmp/torchelastic_a/none_b", attempt: int = 0
) -> dict[str, str]:
    return {
        **base,
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_ERROR_FILE": f"{folder}/attempt_{attempt}/{index}/error.json",
    }


def run_id(environ: Mapping[str, str]) -> str:
    return identify("train", workload_of(environ=environ)).run_id


def token(environ: Mapping[str, str]) -> str:
    return identify("train", workload_of(environ=environ)).token


@pytest.mark.parametrize("base", [STANDALONE, PLAIN, STANDALONE | {"TORCHELASTIC_RUN_ID": "sweep-7"}])
def test_the_ranks_and_restarts_of_one_launch_are_one_run(base: Mapping[str, str]) -> None:
    assert run_id(rank(0, base)) == run_id(rank(1, base)) == run_id(rank(1, base, attempt=1))
    assert token(rank(0, base)) == token(rank(1, base)) != token(rank(1, base, attempt=1))


def test_another_launch_is_another_run() -> None:
    assert run_id(rank(0, PLAIN)) != run_id(rank(0, PLAIN, folder="/tmp/torchelastic_a/none_c"))
    other = {**STANDALONE, "TORCHELASTIC_RUN_ID": "42dc140a-3324-4c9b-8e19-a5bf4d5a150a"}
    assert run_id(rank(0, STANDALONE)) != run_id(rank(0, other))


def test_the_id_is_readable() -> None:
    assert run_id(rank(0, STANDALONE)) == "train-32dc140a"
    assert run_id(rank(0, STANDALONE | {"TORCHELASTIC_RUN_ID": "sweep7"})) == "train-sweep7"
    assert workload_of("mine", rank(0, STANDALONE)).id_parts == ("mine",)


def test_ranks_of_two_unconnected_hosts_are_not_merged_with_another_launch() -> None:
    assert workload_of(environ=rank(0, PLAIN | {"WORLD_SIZE": "4"})).id_parts == ()


@pytest.mark.parametrize(
    "launcher", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {"TPU_WORKER_ID": "0"}, {"CLOUD_TPU_TASK_ID": "0"}]
)
def test_rank_and_world_size_are_the_position_whatever_started_torchrun(launcher: Mapping[str, str]) -> None:
    assert process_position({**launcher, **rank(1, STANDALONE)}) == (1, 2)


def test_processes_that_cannot_agree_are_warned_once_of_the_variable_to_set() -> None:
    ended = programs.run("start_run(); start_run('other')", RANK="1", WORLD_SIZE="2")
    assert ended.errors.count("Set RUN_WORKLOAD_ID to the same text") == 1, ended.errors
    for known in ({"RUN_WORKLOAD_ID": "w"}, {"TORCHELASTIC_RUN_ID": "mine"}, {"WORLD_SIZE": "1", "RANK": "0"}):
        ended = programs.run("start_run()", **{"RANK": "1", "WORLD_SIZE": "2", **known})
        assert "RUN_WORKLOAD_ID" not in ended.errors


# --- The real torchrun --------------------------------------------------------------------------------


def torchrun(tmp_path: Path, program: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch", reason="torchrun comes with torch, which is not installed")
    script = tmp_path / "train.py"
    script.write_text(PREAMBLE + textwrap.dedent(program))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *options, str(script)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "ML_DIAGNOSTICS_RAISE": "0", "OMP_NUM_THREADS": "1", **environment},
    )


TRAIN = """
run = start_run()
metrics.record("loss", 1.5, step=1)
metrics.record("memory", 2.5, record_on_all_hosts=True)
"""


@pytest.mark.parametrize("options", [("--standalone",), (), ("--rdzv-backend=c10d", "--rdzv-id=mine")])
def test_two_ranks_are_one_run_of_two_processes(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = torchrun(tmp_path, TRAIN, *options)
    assert ended.returncode == 0, ended.stderr
    run = programs.kept_run()
    (attempt,) = run["attempts"]
    assert (run["runPhase"], attempt["phase"]) == ("COMPLETED", "COMPLETED")
    assert sorted(process["process_index"] for process in attempt["processes"]) == [0, 1]
    assert "RUN_WORKLOAD_ID" not in ended.stderr


def test_a_restart_by_torchrun_is_another_attempt_of_the_run(tmp_path: Path) -> None:
    program = """
    start_run()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.5)
        sys.exit(int(os.environ["RANK"]))
    """
    ended = torchrun(tmp_path, program, "--max-restarts=1")
    assert ended.returncode == 0, ended.stderr
    run = programs.kept_run()
    assert [attempt["phase"] for attempt in run["attempts"]] == ["FAILED", "COMPLETED"]
    assert [attempt["number"] for attempt in run["attempts"]] == [1, 2]


@pytest.mark.parametrize("source", ["agent", "group"])
def test_ranks_that_the_environment_does_not_join_agree_through_the_store_of_torch(tmp_path: Path, source: str) -> None:
    program = """
    import torch.distributed
    os.environ["TORCHELASTIC_RUN_ID"] = "none"
    del os.environ["LOCAL_WORLD_SIZE"]
    if os.environ["SOURCE"] == "group":
        torch.distributed.init_process_group("gloo")
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    run = start_run()
    from ml_diagnostics_common.agreement import agree
    print("session", agree("session", os.environ["RANK"]), flush=True)
    """
    ended = torchrun(tmp_path, program, "--standalone", SOURCE=source)
    assert ended.returncode == 0, ended.stderr
    (attempt,) = programs.kept_run()["attempts"]
    assert sorted(process["process_index"] for process in attempt["processes"]) == [0, 1]
    assert len({line for line in ended.stdout.splitlines() if line.startswith("session")}) == 1
    assert "could not agree" not in ended.stderr
