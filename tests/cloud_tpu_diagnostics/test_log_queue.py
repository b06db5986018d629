"""A block logs where no lock is held, and a stderr that is not read any more stops neither the block nor the job."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from ..waiting import fill_pipe
from .diagnosed_jobs import run

_STALLED = f"""
import contextlib
from cloud_tpu_diagnostics._collect import blocks

{inspect.getsource(fill_pipe)}
read, write = os.pipe()
fill_pipe(write)
os.dup2(write, 2)

def read_until(words):
    os.set_blocking(read, False)
    text = b""
    while words not in text:
        try:
            text += os.read(read, 65536)
        except BlockingIOError:
            time.sleep(0.01)
"""

_COMPANION_ENDS = """
with diagnostic.diagnose(config(cloud=True)):
    collection = blocks._current
    while not (pid := collection._companion._process.pid):
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    while collection._companion is not None:
        time.sleep(0.01)
    time.sleep(0.3)
print("left")
"""

_TIMER_ENDS = """
without_companion()
with diagnostic.diagnose(config(0.2)):
    %s
    while blocks._current._timer._output is not None:
        time.sleep(0.01)
    time.sleep(0.3)
print("left")
"""
_TIMER_IS_TAKEN = _TIMER_ENDS % "faulthandler.dump_traceback_later(600)"
_DESCRIPTORS_ARE_CLOSED = _TIMER_ENDS % "os.closerange(3, 65536)"


@pytest.mark.parametrize(
    "program",
    [_COMPANION_ENDS, _TIMER_IS_TAKEN, _DESCRIPTORS_ARE_CLOSED],
    ids=["the companion ends", "the timer is taken", "the descriptors are closed"],
)
def test_a_job_leaves_its_block_and_ends_though_nothing_reads_its_stderr(tmp_path: Path, program: str) -> None:
    code, out, _ = run(_STALLED + program, tmp_path / "d")
    assert (code, out) == (0, "left\n")


@pytest.mark.parametrize(
    ("program", "words"),
    [(_COMPANION_ENDS, "The process beside the job has ended"), (_TIMER_IS_TAKEN, "faulthandler's timer")],
    ids=["the companion ends", "the timer is taken"],
)
def test_what_could_not_be_logged_is_logged_once_stderr_is_read_again(tmp_path: Path, program: str, words: str) -> None:
    code, out, _ = run(_STALLED + program + f"read_until({words.encode()!r})\noutput('logged')", tmp_path / "d")
    assert (code, out) == (0, "left\nlogged\n")


def test_a_block_logs_what_it_finds_when_it_is_entered_in_the_thread_that_enters_it(tmp_path: Path) -> None:
    _, out, _ = run(
        """
class Handler(logging.Handler):
    def emit(self, record):
        print(record.threadName, blocks._lock._is_owned(), record.getMessage().split(":")[0])
from cloud_tpu_diagnostics._collect import blocks
logging.basicConfig(level=logging.INFO, handlers=[Handler()])
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
with diagnostic.diagnose(config()):
    print("entered")
""",
        tmp_path / "d",
    )
    assert out.splitlines() == [
        "MainThread False Stack trace will be written to the console.",
        "MainThread False SIGUSR1 is taken",
        "entered",
    ]


_LOG_THREAD_IS_SLOW = """
class Handler(logging.StreamHandler):
    def handle(self, record):
        if threading.get_ident() != threading.main_thread().ident:
            is_handling.set()
            %s
        return super().handle(record)
is_handling = threading.Event()
logging.getLogger().addHandler(Handler())
without_companion()
with diagnostic.diagnose(config(0.1)):
    signal.signal(signal.SIGUSR1, lambda *_: None)
    is_handling.wait()
print("left", flush=True)
"""


def test_a_warning_that_is_being_logged_as_its_block_ends_is_logged_before_the_process_ends(tmp_path: Path) -> None:
    code, out, err = run(_LOG_THREAD_IS_SLOW % "time.sleep(0.2)", tmp_path / "d")
    assert (code, out) == (0, "left\n")
    assert "SIGUSR1 is taken" in err


def test_a_log_handler_that_never_returns_stops_neither_its_block_nor_the_job(tmp_path: Path) -> None:
    code, out, _ = run(_LOG_THREAD_IS_SLOW % "threading.Event().wait()", tmp_path / "d")
    assert (code, out) == (0, "left\n")
