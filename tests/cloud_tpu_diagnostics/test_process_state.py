"""The state of a job that seems to be stuck, as the kernel shows it, without a question to the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cloud_tpu_diagnostics._companion.process_state import StateSamples

from ..waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="this system has no /proc")


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def state(pid: int) -> dict[str, Any]:
    found = StateSamples(pid, 0.0).entry(1.0)
    assert found is not None
    return found


@pytest.mark.parametrize("process", ["import sys; print(flush=True); sys.stdin.read()"], indirect=True)
def test_a_process_that_waits_for_a_pipe_is_asleep_there(process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: state(process.pid)["states"] == ["S", "S"])
    found = state(process.pid)
    assert found["cpu_seconds"] == 0
    assert found["message"].startswith("The main thread of the job is asleep")
    if found["wait_channels"][0]:  # Some systems hide it.
        assert "pipe" in found["wait_channels"][0]
        assert "pipe" in found["message"]


@pytest.mark.parametrize("process", ["print(flush=True)\nwhile True: pass"], indirect=True)
def test_a_process_that_computes_runs_and_uses_cpu(process: subprocess.Popen[bytes]) -> None:
    samples = StateSamples(process.pid, 0.0)

    def used_cpu() -> dict[str, Any] | None:
        found = samples.entry(1.0)
        return found if found is not None and found["main_thread_cpu_seconds"] > 0 else None

    found = wait_until(used_cpu)
    assert found["states"][-1] == "R"
    assert found["cpu_seconds"] >= found["main_thread_cpu_seconds"]


@pytest.mark.parametrize("process", ["import sys; print(flush=True); sys.stdin.read()"], indirect=True)
def test_a_process_that_was_stopped_is_shown_as_such(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: state(process.pid)["states"] == ["T", "T"])
    assert "is stopped by a signal" in state(process.pid)["message"]


@pytest.mark.parametrize("process", ["print(flush=True)"], indirect=True)
def test_the_state_of_a_process_that_has_ended_is_not_known(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert state(process.pid)["states"] == []


@pytest.mark.parametrize("process", ["import sys; print(flush=True); sys.stdin.read()"], indirect=True)
def test_the_second_sample_is_taken_a_second_later(process: subprocess.Popen[bytes]) -> None:
    assert StateSamples(process.pid, 5.0).entry(5.9) is None
    found = StateSamples(process.pid, 5.0).entry(6.25)
    assert found is not None
    assert found["seconds"] == 1.25
