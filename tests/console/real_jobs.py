"""Jobs of real processes that record with all libraries, for tests of what the doctor reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_INSTRUMENTED = """
import os, sys, time
import ml_diagnostics
with ml_diagnostics.instrument("digits", config={"lr": 1e-3}) as job:
    for step, batch in job.steps(range(40)):
        time.sleep(0.005)
        job.log({"loss": 1 / (step + 1)}, step=step)
        if step == 30:
            exec(sys.argv[1])
"""
_PLAIN = """
import os, sys, time
exec(sys.argv[1])
"""


class Ended(NamedTuple):
    """The end of a job."""

    folder: Path
    """Its diagnostics folder."""
    code: int
    output: str


def run_job(folder: Path, action: str, *, with_run: bool = True, name: str = "digits") -> Ended:
    """Run a job of one process under `run`.

    Args:
        folder: Its diagnostics folder.
        action: Python code that it runs at step 30, or at its start without a run.
        with_run: False for a program that uses none of the libraries.
        name: The name of a job without a run.
    """
    program = _INSTRUMENTED if with_run else _PLAIN
    run = [sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--"]
    environment = {
        **os.environ,
        "ML_DIAGNOSTICS_DIR": str(folder),
        **({} if with_run else {"ML_DIAGNOSTICS_JOB": name}),
    }
    ended = subprocess.run(
        [*run, sys.executable, "-c", program, action],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return Ended(folder, ended.returncode, ended.stdout)
