"""The current stacks of processes of this machine: by their signal, or from outside with py-spy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.exceptions import DiagnosticsError, MissingExtraError
from ml_diagnostics_common.processes import exists
from ml_diagnostics_common.worker import results_in_parallel

from cloud_tpu_diagnostics._dumps.grouping import MAIN_THREAD, ProcessDump, main_thread, name_processes
from cloud_tpu_diagnostics._dumps.parser import Frame, ThreadStack
from cloud_tpu_diagnostics._stacks.local_processes import (
    DumpError,
    LocalProcess,
    Question,
    ask,
    choose_signal,
    find_processes,
    signal_number,
)

__all__ = ["dump_processes"]

_READ_AT_ONCE: Final = 32
_LONGEST_MESSAGE: Final = 300


def dump_processes(
    pids: Sequence[int], *, native: bool, signal_name: str | None, timeout_seconds: float, notes: list[str]
) -> list[ProcessDump]:
    """Request the stacks of all processes; one that does not answer is reported in a note.

    Args:
        pids: The processes; an empty sequence is all that are inside `diagnose()`.
        native: Include frames of C and C++ if py-spy can read them.
        signal_name: The signal for stacks; None is the one in each process's trace file, else SIGUSR1.
        timeout_seconds: How long to wait for one process.
        notes: Gets what could not be done.

    Raises:
        ConfigurationError: There is no such signal.
        NotFoundError: None of the processes exists.
    """
    wanted = signal_number(signal_name) if signal_name else None
    missing = [pid for pid in pids if not exists(pid)]
    if pids and len(missing) == len(pids):
        raise NotFoundError(f"no process {', '.join(map(str, missing))}")
    notes += [f"no process {pid}" for pid in missing]
    inside = {process.pid: process for process in find_processes()}
    # All get the signal before the first stacks are read, so that these are of the same time.
    asked = [pid for pid in pids if pid not in missing] or inside
    targets = [_Target(pid, inside.get(pid), native, wanted) for pid in asked]
    found = results_in_parallel(lambda target: target.dump(timeout_seconds), targets, _READ_AT_ONCE)
    dumps = [dump for dump in found if dump is not None]
    notes += [note for target in targets for note in target.notes]
    if not pids and not inside:
        notes.append(
            "no process of this machine that this user may signal is inside diagnose() with a trace file; "
            "to inspect any process: tpu-stacks dump PID (needs py-spy)"
        )
    return name_processes(dumps)


class _Target:
    """A process with requested stacks.

    Args:
        pid: Its id.
        process: The process if it is inside `diagnose()`.
        native: Include frames of C and C++ if py-spy can read them.
        wanted: The signal for stacks; None is the one in its trace file, else SIGUSR1.
    """

    def __init__(self, pid: int, process: LocalProcess | None, native: bool, wanted: int | None) -> None:
        self.notes: list[str] = []
        self._pid, self._process, self._native, self._wanted = pid, process, native, wanted
        self._question: Question | None = None
        self._failure: DiagnosticsError | None = None
        if not native:
            self._ask()

    def dump(self, timeout_seconds: float) -> ProcessDump | None:
        """Return its stacks; None if there are none, and `notes` has the reason."""
        try:
            threads = self._threads(timeout_seconds)
        except DiagnosticsError as error:
            self.notes.append(str(error))
            return None
        host = self._process.host if self._process is not None else identity().host
        return ProcessDump(host, host, None, self._pid, None, None, time.time_ns(), threads)

    def _ask(self) -> None:
        if self._process is not None:
            try:
                self._question = ask(self._process, choose_signal(self._process, self._wanted))
            except DiagnosticsError as error:
                self._failure = error

    def _threads(self, timeout_seconds: float) -> tuple[ThreadStack, ...]:
        if self._native:
            try:
                return _dump_with_py_spy(self._pid, native=True, timeout_seconds=timeout_seconds)
            except DiagnosticsError as error:
                self.notes.append(f"no native frames: {error}")
                self._ask()
        try:
            threads = self._answer(timeout_seconds)
        except DiagnosticsError as error:
            if _py_spy() is None:
                raise
            if self._process is not None:
                self.notes.append(f"{error}; py-spy reads it instead")
            return _dump_with_py_spy(self._pid, native=False, timeout_seconds=timeout_seconds)
        if main_thread(threads) is None:
            self.notes.append(
                f"process {self._pid} has more than 100 threads, and its main thread is not shown: try --native"
            )
        return threads

    def _answer(self, timeout_seconds: float) -> tuple[ThreadStack, ...]:
        if self._failure is not None:
            raise self._failure
        if self._question is None:
            raise DumpError(
                f"process {self._pid} is not inside diagnose() with a trace file; to read it from outside, "
                "pip install 'cloud-tpu-diagnostics[native]'"
            )
        return self._question.answer(timeout_seconds=timeout_seconds)


class PySpyError(DiagnosticsError):
    """py-spy could not read the process."""


def _dump_with_py_spy(pid: int, *, native: bool, timeout_seconds: float) -> tuple[ThreadStack, ...]:
    """Read the stacks of a process, which is stopped meanwhile: some 0.1 s with 100 threads.

    Args:
        pid: The process.
        native: Include frames of C and C++.
        timeout_seconds: When to give up; the process continues then.

    Returns:
        Its threads, the main thread last, as in a dump of faulthandler.

    Raises:
        MissingExtraError: py-spy is not installed.
        PySpyError: py-spy is not permitted, took too long, or does not support the process.
    """
    program = _py_spy()
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
        message = " ".join(done.stderr.decode("utf-8", "replace").partition("Stack backtrace")[0].split())
        message = message[:_LONGEST_MESSAGE] or f"exit status {done.returncode}"
        raise PySpyError(f"py-spy could not read process {pid}: {message}{_remedy(message)}")
    try:
        threads = [_thread(thread) for thread in json.loads(done.stdout)]
    except (KeyError, TypeError, ValueError) as error:
        raise PySpyError(f"the output of py-spy could not be read ({type(error).__name__}: {error})") from error
    return tuple(sorted(threads, key=lambda thread: thread.thread == MAIN_THREAD))


def _py_spy() -> str | None:
    beside_python = Path(sys.executable).with_name("py-spy")
    return str(beside_python) if beside_python.is_file() else shutil.which("py-spy")


def _remedy(message: str) -> str:
    lowered = message.lower()
    if "permission" in lowered or "not permitted" in lowered:
        return "; run as root, or give the container the capability SYS_PTRACE"
    return ""


def _thread(encoded: dict[str, Any]) -> ThreadStack:
    name = encoded.get("thread_name") or f"0x{int(encoded['thread_id']):016x}"
    frames = tuple(
        Frame(str(frame["filename"]), int(frame.get("line") or 0), str(frame["name"])) for frame in encoded["frames"]
    )
    return ThreadStack(str(name), bool(encoded.get("owns_gil")), frames)
