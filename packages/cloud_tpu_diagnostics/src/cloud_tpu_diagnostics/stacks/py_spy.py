"""Stacks of a process from outside, by py-spy: it needs nothing of the process, and shows native frames too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.exceptions import DiagnosticsError, MissingExtraError

from cloud_tpu_diagnostics.grouping import MAIN_THREAD
from cloud_tpu_diagnostics.traces import Frame, ThreadStack

__all__ = ["PySpyError", "dump_with_py_spy", "is_installed"]

_LONGEST_MESSAGE: Final = 300


class PySpyError(DiagnosticsError):
    """py-spy could not do it, and why."""


def is_installed() -> bool:
    """Whether there is a py-spy to run."""
    return _program() is not None


def dump_with_py_spy(pid: int, *, native: bool, timeout_seconds: float) -> tuple[ThreadStack, ...]:
    """Reads the stacks of a process, which stands still meanwhile: some 0.1 s with 100 threads.

    Args:
        pid: The process.
        native: Frames of C and C++ as well.
        timeout_seconds: When to give up; the process goes on then.

    Returns:
        Its threads, the main thread last, as faulthandler has it.

    Raises:
        MissingExtraError: It is not installed.
        PySpyError: It is not allowed, took too long, or does not understand the process.
    """
    program = _program()
    if program is None:
        raise MissingExtraError("to read stacks from outside of a process", "cloud-tpu-diagnostics", "native")
    command = [program, "dump", "--json", "--pid", str(pid), *(["--native"] if native else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_seconds, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise PySpyError(f"py-spy had not read process {pid} after {timeout_seconds:g} s") from None
    except OSError as error:
        raise PySpyError(f"{program} could not be started: {error.strerror}") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").partition("Stack backtrace")[0].split())[
            :_LONGEST_MESSAGE
        ]
        raise PySpyError(
            f"py-spy could not read process {pid}: {said or f'exit status {done.returncode}'}{_todo(said)}"
        )
    try:
        threads = [_thread(thread) for thread in json.loads(done.stdout)]
    except (KeyError, TypeError, ValueError) as error:
        raise PySpyError(f"py-spy's answer was not understood ({type(error).__name__}: {error})") from error
    return tuple(sorted(threads, key=lambda thread: thread.thread == MAIN_THREAD))


def _program() -> str | None:
    beside_python = Path(sys.executable).with_name("py-spy")
    return str(beside_python) if beside_python.is_file() else shutil.which("py-spy")


def _todo(said: str) -> str:
    lowered = said.lower()
    if "permission" in lowered or "not permitted" in lowered:
        return "; run as root, or give the container the capability SYS_PTRACE"
    return ""


def _thread(encoded: dict[str, Any]) -> ThreadStack:
    name = encoded.get("thread_name") or f"0x{int(encoded['thread_id']):016x}"
    frames = tuple(
        Frame(str(frame["filename"]), int(frame.get("line") or 0), str(frame["name"])) for frame in encoded["frames"]
    )
    return ThreadStack(str(name), bool(encoded.get("owns_gil")), frames)
