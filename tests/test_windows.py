"""Windows, simulated: every package is imported, a job is recorded and reported, and the rest is reported once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGES = [
    "cloud_tpu_diagnostics",
    "google_cloud_mldiagnostics",
    "ml_diagnostics",
    "ml_diagnostics_common",
    "ml_goodput_measurement",
    "xprofiler",
]
ELSEWHERE = {
    "google_cloud_mldiagnostics._kubernetes": "aiohttp reads the certificates of Windows, which are not simulated",
    "xprofiler.capture.remote_relay": "a program for a host of the cloud",
    "xprofiler.viewers.startup.gke_viewer": "a program for a host of the cloud",
}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "ML_DIAGNOSTICS_RAISE": "0"}
    command = [sys.executable, "-c", f"import simulated_windows, sys\n{program}", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_what_the_simulation_takes_away_is_gone() -> None:
    done = run(
        "import os, signal, subprocess\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "    except ModuleNotFoundError:\n"
        "        print(name)\n"
        "print(sys.platform, hasattr(os, 'fork'), hasattr(os, 'pread'), hasattr(signal, 'SIGUSR1'))"
    )
    assert done.stdout.split() == ["fcntl", "resource", "pwd", "grp", "termios", "win32", "False", "False", "False"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_imported(package: str) -> None:
    done = run(
        "import importlib, pkgutil\n"
        "package = importlib.import_module(sys.argv[1])\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    if not module.name.startswith(tuple(sys.argv[2:])) and '.integrations.' not in module.name:\n"
        "        importlib.import_module(module.name)\n"
        "print('imported')",
        package,
        *ELSEWHERE,
        *[f"{each}.__main__" for each in PACKAGES],
        "cloud_tpu_diagnostics._stacks.__main__",
    )
    assert done.stdout == "imported\n", done.stderr


RECORDED = """
import ml_diagnostics
for first in (0, 10):
    with ml_diagnostics.instrument("digits", config={"lr": 0.1}) as job:
        for step, batch in job.steps(range(10), start=first):
            job.log({"loss": 1 / (step + 1)})
        with job.phase("evaluation"):
            pass
        with job.phase("checkpoint_save", step=step):
            pass
print(job)
"""


def test_a_job_is_recorded_and_the_rest_is_reported_once() -> None:
    done = run(RECORDED)
    assert done.returncode == 0
    assert done.stdout == "<Job 'digits': ended>\n"
    reported = done.stderr.splitlines()
    assert "diagnose() does nothing on Windows: no stack traces, and no watch for hangs." in reported
    assert sum("GoodputMonitor uploads nothing on Windows" in line for line in reported) == 1
    assert sum("continuing job 'digits'" in line for line in reported) == 1
    assert len(reported) == 3, done.stderr

    report = run("from ml_goodput_measurement.cli import main; sys.exit(main(['report', 'digits']))")
    assert "last step    19, 20 steps kept" in report.stdout, report.stderr
    assert "(ended)" in report.stdout
    shown = run("from google_cloud_mldiagnostics.cli import main; sys.exit(main(['show', 'digits']))")
    assert "digits: COMPLETED" in shown.stdout, shown.stderr
    assert "loss" in shown.stdout


def test_a_program_that_was_never_changed_runs_without_a_parent() -> None:
    done = run(
        "from ml_diagnostics.cli import main\n"
        "sys.exit(main(['run', '--name', 'digits', '--', sys.executable, '-c', 'print(1); raise SystemExit(3)']))"
    )
    assert (done.returncode, done.stdout) == (3, "1\n")


def test_the_parent_of_a_job_ends_with_one_sentence() -> None:
    done = run(
        "import runpy\n"
        "sys.argv = ['cloud_tpu_diagnostics', 'run', '--', sys.executable, '-c', 'print(1)']\n"
        "runpy.run_module('cloud_tpu_diagnostics', run_name='__main__', alter_sys=True)"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "does not work on Windows" in done.stderr
