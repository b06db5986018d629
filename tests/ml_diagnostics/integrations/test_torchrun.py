from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .frameworks import installed
from .recorded_jobs import activities, metrics, only_run

torch: Any = installed("torch")

PROGRAM = """
import ml_diagnostics, os, sys, torch
import torch.distributed as distributed

with ml_diagnostics.instrument("linear", directory="out") as job:
    distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, batch in job.steps(torch.ones(5, 2, 4)):
        if step == 3 and "--fail" in sys.argv and os.environ["RANK"] == "0":
            raise ZeroDivisionError("no rows")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        job.log({"loss": loss}, step=step)
    distributed.destroy_process_group()
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environment = {**os.environ, "ML_DIAGNOSTICS_RAISE": "0", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )


def test_two_ranks_are_one_job_that_the_first_records(tmp_path: Path) -> None:
    done = torchrun(tmp_path)
    assert done.returncode == 0, done.stderr
    assert activities("linear") == [
        *("start", "load", "step 0", "load", "step 1", "load", "step 2", "load", "step 3", "load", "step 4", "load"),
        "end",
    ]
    assert sorted(metrics()["loss"]) == [0, 1, 2, 3, 4]
    (attempt,) = only_run()["attempts"]
    assert sorted(process["process_index"] for process in attempt["processes"]) == [0, 1]
    assert only_run()["runPhase"] == "COMPLETED"


def test_a_rank_that_fails_ends_the_job_as_failed(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "--fail")
    assert done.returncode == 1
    assert activities("linear")[-1] == "end ZeroDivisionError"
    assert only_run()["runPhase"] == "FAILED"
