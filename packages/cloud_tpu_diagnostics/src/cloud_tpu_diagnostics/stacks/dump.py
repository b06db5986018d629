"""The stacks of processes of this machine, now: by their own signal, or from outside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.exceptions import DiagnosticsError

from cloud_tpu_diagnostics.grouping import ProcessDump, main_thread, name_processes
from cloud_tpu_diagnostics.stacks.local_processes import (
    DumpError,
    LocalProcess,
    Question,
    ask,
    choose_signal,
    find_processes,
    signal_number,
)
from cloud_tpu_diagnostics.stacks.py_spy import dump_with_py_spy, is_installed
from cloud_tpu_diagnostics.traces import ThreadStack

__all__ = ["dump_processes"]

_READ_AT_ONCE: Final = 32


def dump_processes(
    pids: Sequence[int], *, native: bool, signal_name: str | None, timeout_seconds: float, notes: list[str]
) -> list[ProcessDump]:
    """Asks all processes for their stacks; one that does not answer is a note, and the others are shown.

    Args:
        pids: Which ones; none is all that are inside of `diagnose()`.
        native: Frames of C and C++ as well, where py-spy can do it.
        signal_name: What makes the processes dump; None is what each has said, else SIGUSR1.
        timeout_seconds: How long to wait for one process.
        notes: Is told what could not be done.

    Raises:
        ConfigurationError: There is no such signal.
    """
    wanted = signal_number(signal_name) if signal_name else None
    inside = {process.pid: process for process in find_processes()}
    # All are asked before the first answer is read: so their stacks are of one moment.
    targets = [_Target(pid, inside.get(pid), native, wanted) for pid in pids or inside]
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        dumps = [dump for dump in pool.map(lambda target: target.dump(timeout_seconds), targets) if dump is not None]
    notes += [note for target in targets for note in target.notes]
    if not pids and not inside:
        notes.append(
            "no process of this machine that may be asked is inside of diagnose() with its stacks in a file; "
            "give the PID of one to read it with py-spy"
        )
    return name_processes(dumps)


class _Target:
    """A process that is asked.

    Args:
        pid: Its id.
        process: What is known of it where it is inside of `diagnose()`.
        native: Frames of C and C++ as well, where py-spy can do it.
        wanted: The signal that makes it dump; None is what it has said, else SIGUSR1.
    """

    def __init__(self, pid: int, process: LocalProcess | None, native: bool, wanted: int | None) -> None:
        self.notes: list[str] = []
        self._pid, self._process, self._native, self._wanted = pid, process, native, wanted
        self._question: Question | None = None
        self._failure: DiagnosticsError | None = None
        if not native:
            self._ask()

    def dump(self, timeout_seconds: float) -> ProcessDump | None:
        """Reads its answer; None where there is none, and `notes` say why."""
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
                return dump_with_py_spy(self._pid, native=True, timeout_seconds=timeout_seconds)
            except DiagnosticsError as error:
                self.notes.append(f"no native frames: {error}")
                self._ask()
        try:
            threads = self._answer(timeout_seconds)
        except DiagnosticsError as error:
            if not is_installed():
                raise
            if self._process is not None:
                self.notes.append(f"{error}; it is read by py-spy instead")
            return dump_with_py_spy(self._pid, native=False, timeout_seconds=timeout_seconds)
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
                f"process {self._pid} is not inside of diagnose() with its stacks in a file; to read it from outside, "
                "pip install 'cloud-tpu-diagnostics[native]'"
            )
        return self._question.answer(timeout_seconds=timeout_seconds)
