"""The public README's usage, its snippets unchanged: imports, three scenarios, the interval, and the query."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

from ..waiting import wait_until
from .accompanied_jobs import payloads

IMPORTS = """
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration
from cloud_tpu_diagnostics.configuration import diagnostic_configuration
from cloud_tpu_diagnostics.configuration import stack_trace_configuration
"""
SCENARIO_1 = """
stack_trace_config = stack_trace_configuration.StackTraceConfig(
                      collect_stack_trace=False)
"""
SCENARIO_2 = """
stack_trace_config = stack_trace_configuration.StackTraceConfig(
                      collect_stack_trace=True,
                      stack_trace_to_cloud=False)
"""
SCENARIO_3 = """
stack_trace_config = stack_trace_configuration.StackTraceConfig(
                      collect_stack_trace=True,
                      stack_trace_to_cloud=True)
"""
EVERY_5_MINUTES = """
stack_trace_config = stack_trace_configuration.StackTraceConfig(
                      collect_stack_trace=True,
                      stack_trace_to_cloud=True,
                      stack_trace_interval_seconds=300)
"""
DIAGNOSE = """
debug_config = debug_configuration.DebugConfig(
                stack_trace_config=stack_trace_config)
diagnostic_config = diagnostic_configuration.DiagnosticConfig(
                      debug_config=debug_config)
with diagnostic.diagnose(diagnostic_config):
    run_job(...)
"""
QUERY = """
logName="projects/<project_name>/logs/tpu.googleapis.com%2Fruntime_monitor"
jsonPayload.verb="stacktraceanalyzer"
"""

# A moment of work first: in a dump, a thread that has just started has the identity of its starter.
_WORK = "def run_job(_): pass\n"
_CRASH = "import ctypes, time\ndef run_job(_): time.sleep(0.2); ctypes.string_at(0)\n"
_IS_ASKED = "import os, signal, time\ndef run_job(_): time.sleep(0.2); os.kill(os.getpid(), signal.SIGUSR1)\n"


def run(scenario: str, job: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the documented program with a job, and a folder instead of /tmp/debugging."""
    elsewhere = "from pathlib import Path; from cloud_tpu_diagnostics._collect import trace_file; "
    elsewhere += f"trace_file.FOLDER = Path({str(folder)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", elsewhere + job + IMPORTS + scenario + DIAGNOSE],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_scenario_1_does_nothing(tmp_path: Path) -> None:
    done = run(SCENARIO_1, _WORK, tmp_path / "debugging")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    crashed = run(SCENARIO_1, _CRASH, tmp_path / "debugging")
    assert (crashed.returncode, crashed.stderr) == (-11, "")
    assert not (tmp_path / "debugging").exists()
    assert payloads() == []


def test_scenario_2_shows_stack_traces_on_the_console(tmp_path: Path) -> None:
    crashed = run(SCENARIO_2, _CRASH, tmp_path / "debugging")
    assert crashed.returncode == -11
    assert "Fatal Python error: Segmentation fault" in crashed.stderr
    assert " in run_job" in crashed.stderr
    asked = run(SCENARIO_2, _IS_ASKED, tmp_path / "debugging")
    assert asked.returncode == 0
    assert " in run_job" in asked.stderr
    assert not (tmp_path / "debugging").exists()


def test_scenario_3_writes_files_and_entries_that_the_documented_query_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud_logging_server: CloudLoggingServer
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    crashed = run(SCENARIO_3, _CRASH, tmp_path / "debugging")
    assert crashed.returncode == -11
    (file,) = (tmp_path / "debugging").iterdir()
    assert file.name.startswith("stack_trace_")
    assert " in run_job" in file.read_text()
    query = QUERY.replace("<project_name>", cloud_logging_server.project)
    wait_until(lambda: len(cloud_logging_server.entries(query)) == 2)
    dump, ended = (entry["jsonPayload"] for entry in cloud_logging_server.entries(query))
    assert " in run_job" in dump["message"]
    assert (ended["kind"], ended["how"], ended["signal"]) == ("job_ended", "signal", "SIGSEGV")


@pytest.mark.parametrize(("scenario", "seconds"), [(SCENARIO_3, 600), (EVERY_5_MINUTES, 300)])
def test_without_a_cloud_the_same_entries_are_in_the_journal(scenario: str, seconds: int, tmp_path: Path) -> None:
    assert os.environ["ML_DIAGNOSTICS_BACKEND"] == "local"
    asked = run(scenario, _IS_ASKED, tmp_path / "debugging")
    assert (asked.returncode, asked.stderr) == (0, "")
    wait_until(lambda: len(payloads()) == 2)
    dump, ended = payloads()
    assert (dump["verb"], dump["trigger"], dump["interval_seconds"]) == ("stacktraceanalyzer", "signal", seconds)
    assert (ended["kind"], ended["how"]) == ("job_ended", "clean")
