"""The first contact on a laptop: nothing is configured, and one line at INFO has the path of the records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..waiting import AtOnce

_HEAD = """
import logging, pathlib, time
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
"""
_RECORDER = """
from ml_goodput_measurement.goodput import GoodputRecorder
GoodputRecorder("run-7", "goodput_run-7", True).record_job_start_time()
time.sleep(3)
"""
_RUN = """
from google_cloud_mldiagnostics import machinelearning_run, metrics
run = machinelearning_run("first", log_system_metrics=False)
metrics.record("loss", 1.0, step=0)
time.sleep(3)
"""
_BLOCK = """
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
with diagnostic.diagnose(DiagnosticConfig(DebugConfig(StackTraceConfig(True, True, 0.3)))):
    while not pathlib.Path.home().joinpath(".ml-diagnostics", "journal").exists():
        time.sleep(0.02)  # The companion may take long to start.
    time.sleep(4)
"""


_PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "recorder": (_RECORDER, {}),
    "recorder and block": (_RECORDER.replace("time.sleep(3)", "") + _BLOCK, {}),
    "block": (_BLOCK, {}),
    "run": (_RUN, {}),
    "recorder with half a cloud": (_RECORDER, {"GOOGLE_CLOUD_PROJECT": "my-project"}),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[str, tuple[list[str], str]]:
    """Return the log lines of a program, and its journal's folder, without configuration or a metadata server."""

    def output(name: str) -> tuple[list[str], str]:
        program, variables = _PROGRAMS[name]
        home = tmp_path_factory.mktemp("home")
        environ = {"HOME": str(home), "PATH": os.environ["PATH"], "GCE_METADATA_HOST": "127.0.0.1:9", **variables}
        done = subprocess.run(
            [sys.executable, "-c", _HEAD + program], capture_output=True, text=True, timeout=60, env=environ, check=True
        )
        return done.stderr.splitlines(), str(home / ".ml-diagnostics")

    return AtOnce(output, _PROGRAMS)


def _line(folder: str) -> str:
    return f"INFO Recording to {folder}/journal; no Google Cloud is set up on this machine."


@pytest.mark.parametrize("program", ["recorder", "recorder and block"])
def test_a_recorder_logs_its_path_once(outputs: AtOnce[str, tuple[list[str], str]], program: str) -> None:
    lines, folder = outputs.result(program)
    others = [line for line in lines if not line.startswith("INFO Stack trace will be written in: ")]
    assert others == [_line(folder)]


def test_a_block_logs_its_path_once(outputs: AtOnce[str, tuple[list[str], str]]) -> None:
    lines, folder = outputs.result("block")
    assert lines[0].startswith("INFO Stack trace will be written in: ")
    assert lines[1:] == [_line(folder)]


def test_a_run_logs_its_path_once(outputs: AtOnce[str, tuple[list[str], str]]) -> None:
    lines, folder = outputs.result("run")
    (line,) = lines
    assert line.startswith("INFO The run first-")
    assert f"{folder}/runs/first-" in line


def test_a_cloud_that_is_half_set_up_is_one_warning(outputs: AtOnce[str, tuple[list[str], str]]) -> None:
    lines, _ = outputs.result("recorder with half a cloud")
    (line,) = lines
    assert line.startswith("WARNING Nothing is sent to Cloud Logging: no Google Cloud credentials were found")


def test_the_command_on_stacks_mentions_no_cloud(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cloud_tpu_diagnostics._stacks.cli", "show", "--job", "x"]
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GCE_METADATA_HOST": "127.0.0.1:9"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "tpu-stacks: no stacks of the job 'x' were found\n")
