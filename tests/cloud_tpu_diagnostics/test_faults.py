"""A real fault of a real process: all its threads are shown, where faults belong."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .diagnosed_jobs import Job

_FAULTS = {
    "ctypes.string_at(0)": (signal.SIGSEGV, "Segmentation fault"),
    "os.abort()": (signal.SIGABRT, "Aborted"),
    "os.kill(os.getpid(), signal.SIGFPE)": (signal.SIGFPE, "Floating point exception"),
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
    assert f"Fatal Python error: {text}" in err
    assert "in other_work" in err
    assert 'File "<string>", line' in err
    assert not job.files()


def test_to_the_cloud_a_fault_is_in_the_file(tmp_path: Path) -> None:
    job = Job(_PROGRAM, tmp_path / "d", "file", "ctypes.string_at(0)")
    code, _, err = job.end()
    assert code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in job.trace()
    assert "in other_work" in job.trace()
    assert "Fatal" not in err


def test_after_the_block_a_fault_is_as_it_was_before(tmp_path: Path) -> None:
    code, _, err = Job("with diagnostic.diagnose(config()): pass\nctypes.string_at(0)", tmp_path / "d").end()
    assert code == -signal.SIGSEGV
    assert err == ""
