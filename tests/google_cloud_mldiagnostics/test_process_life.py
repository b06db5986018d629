"""Checks if a process of a run is alive: real ones on this host, and processes of other hosts by their run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google_cloud_mldiagnostics._run_state.process_life import is_alive
from ml_diagnostics_common.processes import pid_namespace, start_mark

HERE = "here"
UPDATED = "2026-03-10T01:02:03Z"
UPDATED_NS = 1_773_104_523 * 10**9


def process(pid: object, started: str, host: str = "here") -> dict[str, Any]:
    return {"hostname": host, "pid": pid, "started": started, "updateTime": UPDATED}


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def test_a_process_is_alive_until_it_is_killed_even_before_its_status_is_collected(
    child: subprocess.Popen[bytes],
) -> None:
    other = process(child.pid, start_mark(child.pid))
    assert is_alive(other, HERE)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(other, HERE)


@pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux shows the start time of a process")
def test_another_process_of_the_same_pid_is_not_the_one(child: subprocess.Popen[bytes]) -> None:
    assert not is_alive(process(child.pid, "1"), HERE)


def test_without_a_start_time_a_process_is_identified_by_its_pid(child: subprocess.Popen[bytes]) -> None:
    assert is_alive(process(child.pid, ""), HERE)
    assert not is_alive(process(2**22 + 1, ""), HERE)


@pytest.mark.parametrize("pid", [None, "12", 0, -1, 10**30, True])
def test_an_invalid_pid_is_not_alive(pid: object) -> None:
    assert not is_alive(process(pid, "1"), HERE)


def test_a_process_of_another_container_lives_while_the_runs_folder_changes(child: subprocess.Popen[bytes]) -> None:
    other = process(child.pid, f"{start_mark(child.pid)}@{pid_namespace()}")
    assert is_alive(other, HERE, now_ns=UPDATED_NS + 10**15)
    other["started"] = "1@of-another-container"
    assert is_alive(other, HERE, now_ns=UPDATED_NS + 170 * 10**9)
    assert not is_alive(other, HERE, now_ns=UPDATED_NS + 190 * 10**9)


def test_a_process_of_another_host_lives_while_the_runs_folder_changes() -> None:
    other = process(1, "1", host="there")
    assert is_alive(other, HERE, now_ns=UPDATED_NS + 170 * 10**9)
    assert not is_alive(other, HERE, now_ns=UPDATED_NS + 190 * 10**9)
    assert not is_alive({**other, "updateTime": None}, HERE)
