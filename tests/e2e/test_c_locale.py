"""Names beyond ASCII with LC_ALL=C, as in slim containers: recorded, found again by name, and printed."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

NAME = "模型-é run"

PROGRAM = """
import os, sys, time
from pathlib import Path
from google_cloud_mldiagnostics import machinelearning_run, metrics
from ml_goodput_measurement import goodput

assert sys.getfilesystemencoding() in ("ascii", "utf-8") and not sys.flags.utf8_mode
name = NAME
recorder = goodput.GoodputRecorder(name, "goodput_" + name, True)
recorder.record_job_start_time()
for step in range(5):
    recorder.record_step_start_time(step)
recorder.record_job_end_time()
folder = os.path.join(os.environ["ML_DIAGNOSTICS_DIR"], "profile-" + name)
run = machinelearning_run(name=name, run_group=name, configs={"schlüssel": name}, gcs_path=folder)
metrics.record(name, 1.5, step=1)
print(run.name)
"""
PROFILED = """
import jax
from google_cloud_mldiagnostics import xprof

with xprof():
    jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))).block_until_ready()
"""
TRACED = """
import faulthandler, os, sys, time

def schritt_é():
    folder = os.path.join(os.environ["ML_DIAGNOSTICS_DIR"], "stacks")
    os.makedirs(folder)
    with open(os.path.join(folder, f"stack_trace_2026_11_22_13_09_43_host_{os.getpid()}.txt"), "w") as file:
        faulthandler.dump_traceback(file)

schritt_é()
"""

# A name as it is in a source file, and as it arrives from the command line, one surrogate a byte.
SOURCES = {"literal": repr(NAME), "argument": "sys.argv[1]"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))},
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "ML_DIAGNOSTICS_BACKEND": "local",
        "ML_DIAGNOSTICS_DIR": f"{tmp_path}/root-é",
        "JAX_PLATFORMS": "cpu",
    }


def command(environ: dict[str, str], *arguments: str) -> str:
    script = Path(sysconfig.get_path("scripts")) / arguments[0]
    ended = subprocess.run([script, *arguments[1:]], env=environ, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    return ended.stdout.decode()


def run_file(environ: dict[str, str], path: Path, program: str) -> str:
    path.write_text(program, encoding="utf-8")
    ended = subprocess.run([sys.executable, path, NAME], env=environ, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_a_job_is_recorded_and_found_by_its_name(environ: dict[str, str], tmp_path: Path, source: str) -> None:
    run = run_file(environ, tmp_path / "trainer-é.py", PROGRAM.replace("NAME", source)).split()[-1]
    arguments = ("goodput", "report", NAME, "--logger", f"goodput_{NAME}")
    assert json.loads(command(environ, *arguments, "--format", "json"))["job_name"] == NAME
    assert "\\u6a21" in command(environ, *arguments)
    [shown] = json.loads(command(environ, "mldiagnostics", "runs", "--group", NAME, "--format", "json"))
    assert (shown["display_name"], shown["group"]) == (NAME, NAME)
    assert "\\u6a21" in command(environ, "mldiagnostics", "show", run)
    rows = list(csv.DictReader(io.StringIO(command(environ, "mldiagnostics", "metrics", run, NAME, "--format", "csv"))))
    assert [(row["metric"], row["value"]) for row in rows] == [("\\u6a21\\u578b-\\xe9 run", "1.5")]


def test_profiles_are_written_to_a_folder_of_any_name_and_summarised(environ: dict[str, str], tmp_path: Path) -> None:
    run_file(environ, tmp_path / "trainer.py", PROGRAM.replace("NAME", SOURCES["literal"]) + PROFILED)
    [folder] = Path(environ["ML_DIAGNOSTICS_DIR"], f"profile-{NAME}").iterdir()
    assert list(folder.rglob("*.xplane.pb"))
    summary = json.loads(command(environ, "xprofiler", "summary", str(folder), "--format", "json"))
    assert summary
    assert command(environ, "xprofiler", "summary", str(folder))


def test_stacks_are_shown_from_a_folder_of_any_name(environ: dict[str, str], tmp_path: Path) -> None:
    run_file(environ, tmp_path / "trainer.py", TRACED)
    assert "schritt_" in command(environ, "tpu-stacks", "show", f"{environ['ML_DIAGNOSTICS_DIR']}/stacks")
