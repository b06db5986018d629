"""The learned pauses of a job outlive its processes: with any contents of the file, and any number of writers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cloud_tpu_diagnostics._companion.job import Job as WatchedJob
from cloud_tpu_diagnostics._companion.learned_file import load_learned, save_learned
from cloud_tpu_diagnostics.entries import HANG_SUSPECTED

from ..waiting import AtOnce, wait_until
from .accompanied_jobs import of_kind
from .diagnosed_jobs import Job

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc", allow_module_level=True)


def _files() -> list[Path]:
    return list((Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "state" / "hangs").glob("*.json"))


def test_the_longest_pause_of_each_phase_is_kept_by_job() -> None:
    assert load_learned("a") == {}
    save_learned("a", {"step": (40.0, 100.0), "eval": (700.0, 0.0)})
    save_learned("a", {"step": (30.0, 0.0), "checkpoint": (900.0, 0.0)})
    save_learned("b/../c", {"step": (5.0, 0.0)})
    learned = load_learned("a")
    assert {phase: seconds for phase, (seconds, _) in learned.items()} == {"step": 40, "eval": 700, "checkpoint": 900}
    assert 99 < learned["step"][1] < 130
    assert [seconds for seconds, _ in load_learned("b/../c").values()] == [5.0]
    assert len(_files()) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b'{"phases": 7}',
        b'{"phases": {"step": 7, "eval": {"seconds": "x", "time": 0}, "x": {"seconds": 1, "time": 1}}}',
        b'{"phases": {"step": {"seconds": 1e999, "time": NaN}, "eval": {"seconds": -1, "time": true}}}',
        b'{"phases": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(content: bytes) -> None:
    save_learned("a", {"step": (40.0, 0.0)})
    (file,) = _files()
    file.write_bytes(content)
    assert load_learned("a") == {}
    save_learned("a", {"step": (50.0, 0.0)})
    assert load_learned("a")["step"][0] == 50


def test_a_pause_of_more_than_a_week_ago_is_forgotten() -> None:
    save_learned("a", {"step": (40.0, 8 * 86_400.0)})
    assert load_learned("a") == {}


def test_processes_that_save_at_once_lose_nothing_of_each_other() -> None:
    program = (
        "import sys\nfrom cloud_tpu_diagnostics._companion.learned_file import save_learned\n"
        "for number in range(20): save_learned('a', {sys.argv[1]: (10.0 + number, 0.0)})"
    )
    phases = ["init", "data", "eval", "checkpoint"]
    writers = [subprocess.Popen([sys.executable, "-c", program, phase]) for phase in phases]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert {phase: seconds for phase, (seconds, _) in load_learned("a").items()} == dict.fromkeys(phases, 29.0)
    assert json.loads(_files()[0].read_text())["phases"]


TRAIN = """
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

watched = config()
watched.debug_config.hang_config = HangConfig(
    enabled=True, abort=True, step_floor_seconds=5, snapshots=1, snapshot_interval_seconds=0.1)
with diagnostic.diagnose(watched):
    wait_for_reader_of_progress()
    for step in range(100):
        diagnostic.heartbeat(step)
        time.sleep(0.05)
    print("pausing", flush=True)
    %s
    for step in range(100, 130):
        diagnostic.heartbeat(step)
        time.sleep(0.02)
print("done", flush=True)
"""


_Outcome: TypeAlias = tuple[Path, list[tuple[int, str, str]]]
"""The records of a job; the exit code, stdout and stderr of its attempts."""


def _two_attempts(folder: Path, environ: dict[str, str]) -> list[tuple[int, str, str]]:
    # By its command, the second one is the same job. The first one is ended after some seven seconds.
    program = TRAIN % "time.sleep(float(os.environ['PAUSE_SECONDS']))"
    return [Job(program, folder, env={**environ, "PAUSE_SECONDS": seconds}).end(100) for seconds in ("40", "9")]


def _stopped_job(by: str, folder: Path, **popen: Any) -> tuple[int, str, str]:
    job = Job(TRAIN % "time.sleep(3)", folder, **popen)
    assert job.line() == "pausing"
    pid = job.process.pid
    if by == "SIGSTOP":
        os.kill(pid, signal.SIGSTOP)
    else:
        debugger = subprocess.Popen(
            [sys.executable, "-c", _DEBUGGER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert debugger.stdout is not None
        if debugger.stdout.readline() != "0\n":
            job.kill()
            pytest.skip("this process may not trace another")
    wait_until(WatchedJob(pid, None).is_stopped)
    time.sleep(8)  # It is stopped for longer than the five seconds after which a silence is a hang.
    if by == "SIGSTOP":
        os.kill(pid, signal.SIGCONT)
    else:
        debugger.communicate("\n")
    return job.end(100)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[str, _Outcome]:
    """Return the outcome of two attempts with a long pause, and of a job by what stopped it."""

    def outcome(of: str) -> _Outcome:
        records, folder = tmp_path_factory.mktemp("ml-diagnostics"), tmp_path_factory.mktemp("traces")
        env = {**os.environ, "ML_DIAGNOSTICS_DIR": str(records)}
        if of == "two attempts":
            return records, _two_attempts(folder, env)
        return records, [_stopped_job(of, folder, env=env)]

    return AtOnce(outcome, ["two attempts", "SIGSTOP", "a debugger"])


def test_a_pause_that_ended_a_job_once_does_not_end_its_next_attempt(outcomes: AtOnce[str, _Outcome]) -> None:
    _, (first, second) = outcomes.result("two attempts")
    assert first[:2] == (-signal.SIGABRT, "pausing\n")
    assert second[:2] == (0, "pausing\ndone\n")


@pytest.mark.parametrize("by", ["SIGSTOP", "a debugger"])
def test_a_stopped_job_does_not_count_as_stuck(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, _Outcome], by: str
) -> None:
    records, ((code, out, _),) = outcomes.result(by)
    assert (code, out) == (0, "done\n")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
    assert of_kind(HANG_SUSPECTED) == []


_DEBUGGER = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
attached = libc.ptrace(16, pid, None, None)
if attached == 0:
    os.waitpid(pid, 0)
print(attached, flush=True)
input()
libc.ptrace(17, pid, None, None)
"""
