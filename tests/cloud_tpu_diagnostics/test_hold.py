"""`run --hold-on-failure`: a failed job keeps its container and files until it is released."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cloud_tpu_diagnostics import _hold
from cloud_tpu_diagnostics._companion.log import EntryLog
from cloud_tpu_diagnostics.entries import CONSOLE, HELD, JOB_ENDED
from cloud_tpu_diagnostics.holds import Hold, holds_directory, read_holds

from ..waiting import LONG_SECONDS, Child, wait_until
from .accompanied_jobs import of_kind
from .test_run import _has_namespaces

_RUN = [sys.executable, "-m", "cloud_tpu_diagnostics", "run"]
_FAILS = ["--", "sh", "-c", "echo last words; exit 3"]


def held(*options: str, job: list[str] = _FAILS, **popen: Any) -> Child:
    return Child([*_RUN, "--hold-on-failure", "1h", *options, *job], **popen)


def the_hold() -> Hold:
    (found,) = read_holds()
    return found


def states() -> list[str]:
    return [entry["state"] for entry in of_kind(HELD)]


def test_a_failed_job_is_held_until_another_process_releases_it_and_has_its_own_exit_code() -> None:
    wrapper = held()
    wait_until(lambda: states() == ["HELD"])
    hold = the_hold()
    assert (hold.host, hold.wrapper_pid) == (os.uname().nodename, wrapper.process.pid)
    assert hold.path.stat().st_mode & 0o777 == 0o600
    assert of_kind(JOB_ENDED)[0]["exit_code"] == 3
    assert of_kind(CONSOLE)[0]["message"] == "last words\n"
    (kept,) = (holds_directory().parent / "console").glob("*.out")
    assert kept.read_text() == "last words\n"
    assert hold.release()
    code, out, err = wrapper.end()
    assert (code, out) == (3, "last words\n")
    assert states() == ["HELD", "RELEASED"]
    assert of_kind(HELD)[-1]["released_by"] == f"{hold.path} was removed"
    assert err.splitlines()[-1].endswith(f": {hold.path} was removed")
    assert not hold.release()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_releases_a_held_job_at_once(number: signal.Signals) -> None:
    wrapper = held()
    wait_until(lambda: states() == ["HELD"])
    wrapper.process.send_signal(number)
    assert wrapper.end()[0] == 3
    assert of_kind(HELD)[-1]["released_by"] == f"{number.name} to process {wrapper.process.pid}"
    assert read_holds() == []


def test_a_diagnostics_folder_that_vanishes_releases_the_job(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    wrapper = held(env={**os.environ, "ML_DIAGNOSTICS_DIR": str(shared)})
    wait_until(lambda: bool(read_holds(shared)))
    shared.rename(tmp_path / "unmounted")
    assert wrapper.end()[0] == 3


def test_the_time_limit_releases_the_job() -> None:
    done = subprocess.run([*_RUN, "--hold-on-failure", "0.5", *_FAILS], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert [entry["released_by"] for entry in of_kind(HELD)[1:]] == ["the time limit of 500 ms"]
    assert of_kind(HELD)[-1]["held_seconds"] >= 0.5


def test_one_line_says_what_it_costs_how_to_attach_and_release_and_that_nothing_restarts() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "train-0-$(x)", "POD_NAMESPACE": "ml"}
    environment = {**os.environ, **pod, "ML_DIAGNOSTICS_RUN": "llama 7"}
    wrapper = held("--chips", "8", "--chip-hour-price", "4.20", env=environment)
    wait_until(lambda: states() == ["HELD"])
    (entry,) = of_kind(HELD)
    line = entry["message"]
    assert "\n" not in line
    assert "keeps the whole JobSet from restarting" in line
    assert "8 chips, 0.00 chip-hours, cost 0.00 (33.60 an hour)" in line
    assert entry["attach"] == "kubectl exec -it -n ml 'train-0-$(x)' -- sh"
    host = os.uname().nodename
    assert entry["release"] == f"mldiagnostics release 'llama 7' {host}, or SIGTERM to process {wrapper.process.pid}"
    assert entry["attach"] in line
    assert entry["release"] in line
    errors = wrapper.process.stderr
    assert errors is not None
    while line not in (printed := errors.readline()):  # It is printed after it was recorded.
        assert printed
    wrapper.process.terminate()
    wrapper.end()
    last = of_kind(HELD)[-1]
    assert last["cost"] == pytest.approx(8 * 4.2 * last["held_seconds"] / 3600, abs=1e-4)


def test_each_minute_a_line_shows_what_it_costs_and_a_reader_that_stops_gets_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, lines, resumed = 0.0, list[str](), threading.Event()
    monkeypatch.setattr(_hold, "time", SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns))

    def warn(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            assert resumed.wait(LONG_SECONDS)

    def next_signal(seconds: float) -> int | None:
        nonlocal now
        now += seconds
        if now < 130:
            wait_until(lambda: len(lines) == 1 + (now - seconds) // 60)
        if now > 300:
            resumed.set()
        return signal.SIGTERM if now > 300 else None

    labels = {"host": "host-1", "pid": "7", "job": "llama"}
    log = EntryLog(labels, is_shipped=False)
    job = _hold.FailedJob(labels, 3 << 8, time.time_ns(), {"message": "exit code 3"})
    _hold.hold(_hold.HoldPlan(3600.0, 4, 2.0), job, log, warn, next_signal, lambda: None)
    log.close(1.0)
    assert [line.partition(" chip-hours, ")[2].partition(" (")[0] for line in lines[:3]] == [
        "cost 0.00",
        "cost 0.13",
        "cost 0.27",
    ]
    wait_until(lambda: len(lines) == 4)
    assert lines[3].startswith("released after 5 min")


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--hold-on-failure", "1h"], "exit 0"),
        (["--hold-on-failure", "1h"], "exit 76"),
        ([], "exit 3"),
    ],
    ids=["a success", "ended by fast-fail", "not asked for"],
)
def test_only_a_failure_of_its_own_is_held_and_only_if_the_user_wants_it(options: list[str], script: str) -> None:
    done = subprocess.run([*_RUN, *options, "--", "sh", "-c", script], check=False, timeout=LONG_SECONDS)
    assert done.returncode == int(script.split()[1])
    assert of_kind(HELD) == []


def test_a_job_that_was_asked_to_end_is_not_held() -> None:
    wrapper = held(job=["--", "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"])
    assert wrapper.line() == "ready"
    wrapper.process.terminate()
    assert wrapper.end()[0] == 9
    assert of_kind(HELD) == []


_IN_A_STAR = """
import os, sys
from cloud_tpu_diagnostics._fast_fail.status import FastFailStatus, write_status
from ml_diagnostics_common.processes import start_mark
cause = {"hosts": ["host-7"], "process_indices": [7], "message": "host-7 failed first"}
status = FastFailStatus(cause, is_first_cause=sys.argv[1] == "first", exit_code=None if sys.argv[1] == "first" else 99)
write_status(os.getpid(), start_mark(os.getpid()), status)
os._exit(99)
"""


def test_of_a_job_that_fast_fail_ends_only_the_process_that_failed_first_is_held() -> None:
    command = ["--", sys.executable, "-c", _IN_A_STAR]
    assert held(job=[*command, "other"]).end()[0] == 99
    assert of_kind(HELD) == []
    wrapper = held(job=[*command, "first"])
    wait_until(lambda: states() == ["HELD"])
    wrapper.process.terminate()
    assert wrapper.end()[0] == 99


def test_a_job_in_a_shell_that_fast_fail_has_ended_is_not_held() -> None:
    """The companion of the program that the shell has started records it."""
    program = """
import os
from cloud_tpu_diagnostics._companion.log import EntryLog
from ml_diagnostics_common.environment import identity
log = EntryLog(identity().labels(), is_shipped=False)
log.write({"kind": "job_ended", "ended_by": "fast_fail", "first_cause": {}, "is_first_cause": False, "message": ""})
log.close(1.0)
os._exit(99)
"""
    assert held(job=["--", "sh", "-c", '"$@"; exit 5', "sh", sys.executable, "-c", program]).end()[0] == 5
    assert of_kind(HELD) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hold-on-failure", "24h1"], "is not a duration"),
        (["--hold-on-failure", "0"], "is not a duration"),
        (["--hold-on-failure", "86401"], "at most 24 h"),
        (["--hold-on-failure", "2d"], "at most 24 h"),
        (["--hold-on-failure", "1h", "--chip-hour-price", "nan"], "price"),
        (["--hold-on-failure", "1h", "--chips", "0"], "whole number"),
        (["--chip-hour-price", "4"], "need --hold-on-failure"),
    ],
)
def test_invalid_options_are_refused_before_the_job_starts(options: list[str], message: str) -> None:
    done = subprocess.run([*_RUN, *options, "--", "echo", "started"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_24_hours_are_allowed() -> None:
    command = [*_RUN, "--hold-on-failure", "24h", "--", "true"]
    assert subprocess.run(command, check=False, timeout=LONG_SECONDS).returncode == 0


def test_a_job_is_held_without_a_file_where_none_can_be_created() -> None:
    root = holds_directory().parent
    root.mkdir(exist_ok=True)
    (root / "holds").write_text("a file in place of the folder")
    wrapper = held()
    wait_until(lambda: states() == ["HELD"])
    assert of_kind(HELD)[0]["release"] == f"SIGTERM to process {wrapper.process.pid}"
    wrapper.process.terminate()
    assert wrapper.end()[0] == 3


def test_a_stopped_reader_of_the_output_does_not_keep_a_held_job_from_its_release() -> None:
    wrapper = held("--no-console", job=["--", "sh", "-c", "head -c 70000 /dev/zero >&2 & sleep 0.2; kill $!; exit 3"])
    wait_until(lambda: states() == ["HELD"])
    wrapper.process.terminate()
    wait_until(lambda: wrapper.process.poll() is not None)
    assert wrapper.process.returncode == 3


@pytest.mark.skipif(not _has_namespaces(), reason="no namespaces of processes can be made here")
def test_as_process_1_a_wrapper_that_holds_reaps_orphans_and_ends_by_sigterm_from_within() -> None:
    script = "(sleep 1) & (sleep 300; :) & exit 3"
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    wrapper = Child([*unshare, *_RUN, "--hold-on-failure", "1h", "--", "sh", "-c", script])
    wait_until(lambda: states() == ["HELD"])
    assert the_hold().wrapper_pid == 1
    (inside,) = children_of(wrapper.process.pid)
    wait_until(lambda: len(children_of(inside)) == 1)  # The first orphan has ended, and was reaped.
    enter = ["nsenter", f"--user=/proc/{inside}/ns/user", f"--pid=/proc/{inside}/ns/pid", "--preserve-credentials"]
    subprocess.run([*enter, "sh", "-c", "kill -TERM 1"], check=True)
    assert wrapper.end()[0] == 3
    assert of_kind(HELD)[-1]["released_by"] == "SIGTERM to process 1"


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_files_of_holds_are_read_with_care() -> None:
    folder = holds_directory()
    folder.mkdir(parents=True)
    (folder / "host-a-12.json").write_text(json.dumps({"wrapper_pid": "no number", "run": "r", "unknown": 1}))
    (folder / "host-13.json").write_text("[" * 100_000)
    (folder / "host-x.json").write_text("{}")
    (folder / "unrelated").write_text("")
    (folder / "host-14.json").symlink_to("/dev/zero")
    found = read_holds()
    assert [(hold.host, hold.pid, hold.wrapper_pid, hold.run) for hold in found] == [
        ("host", 13, 0, ""),
        ("host", 14, 0, ""),
        ("host-a", 12, 0, "r"),
    ]


def test_the_file_of_a_wrapper_that_was_killed_is_removed_by_a_later_one() -> None:
    folder = holds_directory()
    folder.mkdir(parents=True)
    day_ns = 86_400 * 10**9
    old, recent = folder / "gone-7.json", folder / "gone-8.json"
    old.write_text(json.dumps({"until_ns": time.time_ns() - 2 * day_ns}))
    recent.write_text(json.dumps({"until_ns": time.time_ns() - day_ns // 2}))
    subprocess.run([*_RUN, "--hold-on-failure", "0.1", *_FAILS], capture_output=True, check=False)
    assert (old.exists(), recent.exists()) == (False, True)
