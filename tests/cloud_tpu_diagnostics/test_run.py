"""`python -m cloud_tpu_diagnostics run -- CMD`: exits like the job, and records the reason."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics.entries import JOB_ENDED, LEFT_BLOCK
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

from ..waiting import LONG_SECONDS, wait_until
from .accompanied_jobs import _HEAD, of_kind

_RUN = [sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--"]


def run(*job: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_RUN, *job],
        capture_output=True,
        text=True,
        timeout=LONG_SECONDS,
        check=False,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize(
    ("script", "code", "expected"),
    [
        ("exit 0", 0, {"how": "clean", "exit_code": 0}),
        ("exit 3", 3, {"how": "exit", "exit_code": 3}),
        ("kill -TERM $$", -signal.SIGTERM, {"how": "signal", "signal": "SIGTERM"}),
        ("kill -SEGV $$", -signal.SIGSEGV, {"how": "signal", "signal": "SIGSEGV"}),
        ("kill -KILL $$", -signal.SIGKILL, {"how": "signal", "signal": "SIGKILL"}),
    ],
)
def test_run_exits_like_its_job_and_records_the_reason(script: str, code: int, expected: dict[str, object]) -> None:
    done = run("sh", "-c", f"cat; echo out; echo err >&2; {script}", input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (code, "in\nout\n", "err\n")
    (found,) = of_kind(JOB_ENDED)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("job", "code"), [("/nonexistent/program", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_run_is_named_and_has_the_exit_code_of_a_shell(job: str, code: int) -> None:
    done = run(job)
    assert done.returncode == code
    assert job in done.stderr
    assert of_kind(JOB_ENDED) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_the_job_which_has_its_own_handlers(number: signal.Signals) -> None:
    job = f"import signal\nsignal.signal({int(number)}, lambda *_: exit(5))\nprint('ready', flush=True)\nsignal.pause()"
    process = subprocess.Popen([*_RUN, sys.executable, "-c", job], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(LONG_SECONDS) == 5
    process.stdout.close()


def test_the_job_starts_with_the_signal_settings_of_its_caller() -> None:
    command = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert _masks(run(*command).stdout) == _masks(plain)


def _masks(status: str) -> list[int]:
    """Return the masks without 32 and 33, which are the C library's own."""
    return [int(line.split()[1], 16) & ~(0b11 << 31) for line in status.splitlines()]


def test_the_end_is_recorded_by_run_and_not_again_by_the_companion(tmp_path: Path) -> None:
    job = _HEAD + "\nreport(start().pid)\nctypes.string_at(0)"
    done = run(sys.executable, "-c", job, str(tmp_path / "trace"))
    assert done.returncode == -signal.SIGSEGV
    companion = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{companion}").exists())
    assert [ending["signal"] for ending in of_kind(JOB_ENDED)] == ["SIGSEGV"]


def test_run_records_the_end_and_the_companion_the_exception_that_left_the_block(tmp_path: Path) -> None:
    job = _HEAD + "\nstart().leave('exception', 'ValueError')\nos.abort()"
    assert run(sys.executable, "-c", job, str(tmp_path / "trace")).returncode == -signal.SIGABRT
    wait_until(lambda: bool(of_kind(LEFT_BLOCK)))
    assert [(left["how"], left["exception"]) for left in of_kind(LEFT_BLOCK)] == [("exception", "ValueError")]
    assert [ending["signal"] for ending in of_kind(JOB_ENDED)] == ["SIGABRT"]


def test_the_end_has_its_time_and_the_step_that_the_job_was_in() -> None:
    before_ns = time.time_ns()
    job = """
import os, signal
from ml_diagnostics_common.progress import ProgressPage
page = ProgressPage.create()
page.publish("step", 41)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run(sys.executable, "-c", job)
    (found,) = of_kind(JOB_ENDED)
    assert (found["signal"], found["phase"], found["step"]) == ("SIGKILL", "step", 41)
    assert before_ns < found["ended_ns"] < time.time_ns()
    assert found["progress_age_seconds"] < 1e-9 * (time.time_ns() - before_ns)


def test_the_end_of_a_grandchild_is_recorded_by_its_own_companion(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_HEAD + "\nstart()\nos._exit(4)")
    done = run("sh", "-c", f"{sys.executable} {tmp_path}/job.py {tmp_path}/trace; exit 6")
    assert done.returncode == 6
    wait_until(lambda: len(of_kind(JOB_ENDED)) == 2)
    assert sorted(ending["exit_code"] for ending in of_kind(JOB_ENDED)) == [4, 6]


def _has_namespaces() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    command = [unshare, "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_namespaces(), reason="no namespaces of processes can be made here")
def test_as_process_1_run_reaps_orphans_and_waits_for_the_last_traces(tmp_path: Path) -> None:
    orphan = "sh -c '(sleep 0.2) & exit 0'"
    job = f"""
def orphans():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append(open(f"/proc/{{name}}/stat").read())
        except OSError:
            continue  # It has ended meanwhile.
    return [stat for stat in found if "(sleep)" in stat or ") Z " in stat]
os.system({orphan!r})
give_up = time.monotonic() + 20
while orphans() and time.monotonic() < give_up:
    time.sleep(0.01)
report(os.getppid(), orphans())
start()
ctypes.string_at(0)
"""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*unshare, *_RUN, sys.executable, "-c", _HEAD + job, str(tmp_path / "trace")],
        capture_output=True,
        text=True,
        timeout=LONG_SECONDS,
        check=False,
    )
    assert done.stdout == "1 []\n", done.stderr
    assert done.returncode == 128 + signal.SIGSEGV
    assert [ending["signal"] for ending in of_kind(JOB_ENDED)] == ["SIGSEGV"]
    assert [dump["headline"] for dump in of_kind("dump")] == ["Fatal Python error: Segmentation fault"]


@pytest.mark.skipif(not _has_namespaces(), reason="no namespaces of processes can be made here")
def test_a_job_that_is_started_by_run_and_waits_for_all_children_gets_only_its_own(tmp_path: Path) -> None:
    """A job that is process 1 itself waits for the companion, which waits for the job."""
    job = """
start()
time.sleep(1)
child = os.spawnlp(os.P_NOWAIT, "true", "true")
try:
    while True:
        assert os.wait() == (child, 0)
except ChildProcessError:
    report("no child")
"""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*unshare, *_RUN, sys.executable, "-c", _HEAD + job, str(tmp_path / "trace")],
        capture_output=True,
        text=True,
        timeout=LONG_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "no child\n"), done.stderr


def test_the_end_of_a_job_is_in_the_cloud_when_its_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch, cloud_logging_server: CloudLoggingServer
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    assert run("sh", "-c", "exit 3").returncode == 3
    (found,) = cloud_logging_server.entries('jsonPayload.verb="stacktraceanalyzer"')
    assert found["jsonPayload"]["exit_code"] == 3


@pytest.mark.parametrize("program", ["", "nonexistent"])
def test_a_program_that_is_not_found_is_one_error_of_the_command(program: str) -> None:
    command = [sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    assert done.stderr.startswith(f"python -m cloud_tpu_diagnostics: cannot run {program!r}: ")
