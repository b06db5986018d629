"""The end of a process names what handled SIGTERM in it, so that a reader knows if it could save at a preemption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion.sigterm import SigtermHandlers
from cloud_tpu_diagnostics.entries import JOB_ENDED, LEFT_BLOCK, SIGTERM_HANDLER

from ..waiting import LONG_SECONDS, wait_until
from .accompanied_jobs import _HEAD, Job, ending, of_kind
from .test_run import _RUN

_JAX = """
import socket
import jax
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # As the coordinator sets it, and no other program here.
held.bind(("127.0.0.1", 0))
port = held.getsockname()[1]
def initialize(): jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
def save_and_end(number, frame): sys.exit(0)
"""


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def test_a_job_without_a_handler_ends_by_sigterm_and_its_end_says_so(tmp_path: Path) -> None:
    program = """
companion = start()
while not companion._sigterm_handler: time.sleep(0.01)
report("ready")
time.sleep(60)
"""
    job = Job(program, tmp_path / "trace")
    assert job.line() == "ready"
    job.process.terminate()
    assert job.process.wait(LONG_SECONDS) == -signal.SIGTERM
    assert (ending()["sigterm_handler_at_start"], ending()["sigterm_handler"]) == ("default", "default")
    assert of_kind(SIGTERM_HANDLER) == []


def test_a_handler_that_is_installed_in_the_block_is_that_of_the_end(tmp_path: Path) -> None:
    program = """
companion = start()
while not companion._sigterm_handler: time.sleep(0.01)
signal.signal(signal.SIGTERM, lambda number, frame: None)
companion.leave("clean")
"""
    assert Job(program, tmp_path / "trace").end()[0] == 0
    assert (ending()["sigterm_handler_at_start"], ending()["sigterm_handler"]) == ("default", "python")


def test_a_handler_that_is_installed_after_jaxs_is_known_to_have_replaced_it(tmp_path: Path) -> None:
    program = f"""{_JAX}
initialize()
companion = start()
while companion._sigterm_handler.get("handler") != "c": time.sleep(0.01)
signal.signal(signal.SIGTERM, save_and_end)
companion.leave("clean")
"""
    assert Job(program, tmp_path / "trace").end()[0] == 0
    assert (ending()["sigterm_handler_at_start"], ending()["sigterm_handler"]) == ("c", "python")
    by_jax, by_python = of_kind(SIGTERM_HANDLER)
    assert (by_jax["handler"], by_jax.get("replaces")) == ("c", None)
    assert by_jax["library"].endswith(".so")
    assert (by_python["handler"], by_python["function"], by_python["replaces"]) == (
        "python",
        "__main__.save_and_end",
        "jax",
    )
    assert by_python["message"] == (
        "Python handles SIGTERM in the job: __main__.save_and_end. It has replaced JAX's handler, so JAX does not save "
        "at a preemption"
    )


def test_a_handler_that_jax_has_replaced_is_not_taken_for_the_one_that_runs(tmp_path: Path) -> None:
    program = f"""{_JAX}
signal.signal(signal.SIGTERM, save_and_end)
initialize()
assert signal.getsignal(signal.SIGTERM) is save_and_end  # Python does not know.
start().leave("clean")
"""
    assert Job(program, tmp_path / "trace").end()[0] == 0
    assert ending()["sigterm_handler"] == "c"
    [found] = of_kind(SIGTERM_HANDLER)
    assert (found["handler"], found["replaces"]) == ("c", "__main__.save_and_end")


def test_under_run_the_handlers_of_a_killed_job_are_recorded_too(tmp_path: Path) -> None:
    program = """
import os
signal.signal(signal.SIGTERM, lambda number, frame: None)
companion = start()
while not companion._sigterm_handler: time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [*_RUN, sys.executable, "-c", _HEAD + program, str(tmp_path / "trace")]
    assert subprocess.run(command, timeout=LONG_SECONDS, env=os.environ).returncode in (137, -9)
    wait_until(lambda: bool(of_kind(SIGTERM_HANDLER)) and bool(of_kind(JOB_ENDED)))
    assert of_kind(SIGTERM_HANDLER)[0]["handler"] == "python"


def test_under_run_the_end_of_the_block_has_both(tmp_path: Path) -> None:
    program = "start().leave('clean')"
    command = [*_RUN, sys.executable, "-c", _HEAD + program, str(tmp_path / "trace")]
    assert subprocess.run(command, timeout=LONG_SECONDS, env=os.environ).returncode == 0
    wait_until(lambda: bool(of_kind(LEFT_BLOCK)))
    assert of_kind(LEFT_BLOCK)[0]["sigterm_handler"] == "default"


def test_a_message_that_was_overtaken_by_a_later_one_is_not_the_last() -> None:
    handlers = SigtermHandlers(os.getpid())
    handlers.learn({"handler": "python", "function": "save", "read_ns": 2})
    handlers.check(0)
    handlers.learn({"handler": "c", "library": "x.so", "read_ns": 1})
    handlers.check(100)
    assert handlers.fields()["sigterm_handler"] == "python"


def test_without_ctypes_what_python_knows_is_recorded(tmp_path: Path) -> None:
    program = """
sys.modules["ctypes"] = None
signal.signal(signal.SIGTERM, signal.SIG_IGN)
start().leave("clean")
"""
    assert Job(program, tmp_path / "trace").end()[0] == 0
    assert ending()["sigterm_handler"] == "ignored"
