"""The stacks of processes of this machine, now: by their own signal, or from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ml_diagnostics_common.exceptions import DiagnosticsError

from cloud_tpu_diagnostics.grouping import ProcessDump, main_thread, name_processes
from cloud_tpu_diagnostics.stacks.local_processes import (
    DumpError,
    LocalProcess,
    choose_signal,
    dump_by_signal,
    find_processes,
    signal_number,
)
from cloud_tpu_diagnostics.stacks.py_spy import dump_with_py_spy, is_installed
from cloud_tpu_diagnostics.traces import ThreadStack

__all__ = ["dump_processes"]


def dump_processes(
    pids: Sequence[int], *, native: bool, signal_name: str | None, timeout_seconds: float, notes: list[str]
) -> list[ProcessDump]:
    """Asks each process for its stacks; one that does not answer is a note, and the others are shown.

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
    dumps = []
    for pid in pids or inside:
        try:
            threads = _threads_of(pid, inside.get(pid), native, wanted, timeout_seconds, notes)
        except DiagnosticsError as error:
            notes.append(str(error))
            continue
        host = inside[pid].host if pid in inside else os.uname().nodename
        dumps.append(ProcessDump(host, host, None, pid, None, None, time.time_ns(), threads))
    if not pids and not inside:
        notes.append(
            "no process of this machine that may be asked is inside of diagnose() with its stacks in a file; "
            "give the PID of one to read it with py-spy"
        )
    return name_processes(dumps)


def _threads_of(
    pid: int,
    process: LocalProcess | None,
    native: bool,
    wanted: int | None,
    timeout_seconds: float,
    notes: list[str],
) -> tuple[ThreadStack, ...]:
    if native:
        try:
            return dump_with_py_spy(pid, native=True, timeout_seconds=timeout_seconds)
        except DiagnosticsError as error:
            notes.append(f"no native frames: {error}")
    if process is None:
        if not is_installed():
            raise DumpError(
                f"process {pid} is not inside of diagnose() with its stacks in a file; to read it from outside, "
                "pip install 'cloud-tpu-diagnostics[native]'"
            )
        return dump_with_py_spy(pid, native=False, timeout_seconds=timeout_seconds)
    try:
        threads = dump_by_signal(process, choose_signal(process, wanted), timeout_seconds=timeout_seconds)
    except DumpError as error:
        if not is_installed():
            raise
        notes.append(f"{error}; it is read by py-spy instead")
        return dump_with_py_spy(pid, native=False, timeout_seconds=timeout_seconds)
    if main_thread(threads) is None:
        notes.append(f"process {pid} has more than 100 threads, and its main thread is not shown: try --native")
    return threads
