"""A real fault of a real process: all its threads are shown, in the block's output."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from .diagnosed_jobs import Job

_FAULTS = {
    "ctypes.string_at(0)": (signal.SIGSEGV, "Segmentation fault"),
    "os.abort()": (signal.SIGABRT, "Aborted"),
    "os.kill(os.getpid(), signal.SIGFPE)": (signal.SIGFPE, "Floating.point exception"),
    "os.kill(os.getpid(), signal.SIGBUS)": (signal.SIGBUS, "Bus error"),
    "os.kill(os.getpid(), signal.SIGILL)": (signal.SIGILL, "Illegal instruction"),
}
_PROGRAM = """
ready = threading.Event()
def other_work():
    ready.set()
    time.sleep(100)
threading.Thread(target=other_work, daemon=True).start()
ready.wait()
without_companion()
with diagnostic.diagnose(config(cloud=sys.argv[2] == "file")):
    exec(sys.argv[3])
"""


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_shows_all_threads(tmp_path: Path, fault: str) -> None:
    number, text = _FAULTS[fault]
    job = Job(_PROGRAM, tmp_path / "d", "console", fault)
    code, _, err = job.end()
    assert code == -number
    assert re.search(f"Fatal Python error: {text}", err)  # With a hyphen since Python 3.12.
    assert "in other_work" in err
    assert 'File "<string>", line' in err
    assert not job.files()


def test_with_the_cloud_a_fault_is_in_the_trace_file(tmp_path: Path) -> None:
    job = Job(_PROGRAM, tmp_path / "d", "file", "ctypes.string_at(0)")
    code, _, err = job.end()
    assert code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in job.trace()
    assert "in other_work" in job.trace()
    assert "Fatal" not in err


_CROWD = """
def crowd():
    for _ in range(150):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
def fails_here():
    ctypes.string_at(0)
"""


def test_among_more_threads_than_faulthandler_writes_a_fault_shows_the_one_that_failed(tmp_path: Path) -> None:
    code, _, err = Job(_CROWD + "crowd()\nwith diagnostic.diagnose(config()): fails_here()", tmp_path / "d").end()
    assert code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in err
    assert "in fails_here" in err


def test_threads_that_start_and_end_in_the_block_change_the_output_of_a_fault(tmp_path: Path) -> None:
    code, out, err = Job(
        _CROWD
        + """
from cloud_tpu_diagnostics._collect import timer, watchdog
timer._RECHECK_SECONDS = 0.05
enable, enabled_with = faulthandler.enable, []
def enabled(file, all_threads):
    enable(file, all_threads)
    enabled_with.append(all_threads)
watchdog.faulthandler.enable = enabled
with diagnostic.diagnose(config()):  # It checks more often than it dumps.
    crowd()
    deadline = time.monotonic() + 20
    while len(enabled_with) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    output(*enabled_with)
    fails_here()
""",
        tmp_path / "d",
    ).end()
    assert (code, out) == (-signal.SIGSEGV, "True False\n")
    assert "in fails_here" in err.partition("Fatal Python error")[2]


def test_after_the_block_faults_are_written_as_before_it(tmp_path: Path) -> None:
    code, _, err = Job("with diagnostic.diagnose(config()): pass\nctypes.string_at(0)", tmp_path / "d").end()
    assert code == -signal.SIGSEGV
    assert err == ""
