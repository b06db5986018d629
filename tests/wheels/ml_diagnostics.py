"""Run in an empty environment with the wheel and what it depends on: a job, and a program without a change."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_diagnostics

assert "site-packages" in ml_diagnostics.__file__

with tempfile.TemporaryDirectory() as folder:
    os.environ.update(ML_DIAGNOSTICS_DIR=folder, ML_DIAGNOSTICS_BACKEND="local", ML_DIAGNOSTICS_RAISE="1")
    with ml_diagnostics.instrument("wheel", config={"lr": 0.1}) as job:
        for step, batch in job.steps(range(9)):
            job.log({"loss": 1 / (batch + 1)}, step=step)
        with job.phase("evaluation"):
            pass
    assert str(job.report()).startswith("wheel: ")
    assert list(Path(folder, "tensorboard", "wheel").glob("**/events.out.tfevents.*"))

    command = str(Path(sys.executable).with_name("ml-diagnostics"))
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"ml-diagnostics {ml_diagnostics.__version__}\n", version.stdout
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "--name", "x"]
    ran = subprocess.run([command, "run", "--quiet", "--", *program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (7, "['--name', 'x']\n"), ran
print("ml_diagnostics: instruments a job, and runs a program as it is")
