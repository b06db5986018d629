"""Processes of this machine that can be asked for their stacks now."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

from cloud_tpu_diagnostics import trace_file
from cloud_tpu_diagnostics.stacks.trace_files import newest_of, parse_name
from cloud_tpu_diagnostics.traces import Dump, DumpParser, ThreadStack

__all__ = ["DumpError", "LocalProcess", "choose_signal", "dump_by_signal", "find_processes"]

_QUIET_SECONDS: Final = 0.2
"""A dump of 100 threads takes 0.04 s; so long after its last line it is at its end."""
_CUT_SECONDS: Final = 3.0
"""So long after a dump that was cut at 100 threads the companion has asked the main thread for its own stack."""
_POLL_SECONDS: Final = 0.01
_BEGINNING_BYTES: Final = 4096
_SAID_SIGNAL: Final = re.compile(rb"^INFO: .*\bsend (SIG[A-Z0-9+]+)", re.MULTILINE | re.IGNORECASE)


class DumpError(DiagnosticsError):
    """A process could not be asked, or did not answer, and why."""


class LocalProcess(NamedTuple):
    """A live process, inside of `diagnose()`."""

    pid: int
    host: str
    path: Path
    """Its trace file, which it holds open."""


def find_processes(folder: Path | None = None) -> tuple[LocalProcess, ...]:
    """The live processes whose trace files lie in a folder, or a folder in it.

    A file's name alone proves nothing: its process may be gone, and the pid another's. So the process must hold the
    very file open.

    Args:
        folder: Where; None is where `diagnose()` writes.
    """
    found = {}
    for path in sorted((folder or trace_file.FOLDER).glob("**/stack_trace_*.txt")):
        name = parse_name(path.name)
        if name is not None and _holds(name.pid, path):
            found[name.pid] = LocalProcess(name.pid, name.host, path)
    return tuple(found.values())


def _holds(pid: int, path: Path) -> bool:
    try:
        wanted = path.stat()
    except OSError:
        return False
    return any((held.st_dev, held.st_ino) == (wanted.st_dev, wanted.st_ino) for held in _open_files(pid))


def _open_files(pid: int) -> Iterator[os.stat_result]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield link.stat()
        except OSError:
            continue


def choose_signal(process: LocalProcess, wanted: int | None = None) -> int:
    """The signal that makes the process write its stacks, and nothing else.

    Args:
        process: Inside of `diagnose()`.
        wanted: What the user says it is; None is what the trace file says, else SIGUSR1.

    Raises:
        DumpError: The process does not catch the signal, which would then kill it, or may use it for something else.
    """
    caught = _caught_signals(process.pid)
    number = wanted or _said_signal(process.path)
    if number is None:
        number = signal.SIGUSR1
        if _is_in(caught, signal.SIGUSR1) and _is_in(caught, signal.SIGUSR2):
            raise DumpError(
                f"process {process.pid} catches both SIGUSR1 and SIGUSR2, one of them perhaps for its own ends; its "
                "log says which one is for stack traces: give that one with --signal"
            )
    if not _is_in(caught, number):
        raise DumpError(f"process {process.pid} does not catch {_signal_name(number)}, which would end it: not sent")
    return number


def _said_signal(path: Path) -> int | None:
    """The signal that the beginning of the file names: it does where SIGUSR1 was taken."""
    try:
        with path.open("rb") as file:
            said = _SAID_SIGNAL.search(file.read(_BEGINNING_BYTES))
    except OSError:
        return None
    return None if said is None else signal_number(said[1].decode())


def signal_number(text: str) -> int:
    """The number of `SIGUSR2`, `USR2`, `SIGRTMIN+3` or `12`.

    Raises:
        ConfigurationError: There is no such signal.
    """
    base, _, offset = text.upper().partition("+")
    try:
        number = int(base) if base.isdecimal() else signal.Signals[base if base.startswith("SIG") else f"SIG{base}"]
        number = int(number) + int(offset or 0)
    except (KeyError, ValueError):
        number = 0
    if not 0 < number < signal.NSIG:
        raise ConfigurationError(f"{text!r} is no signal: give a name such as SIGUSR2 or SIGRTMIN+2, or a number")
    return number


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _caught_signals(pid: int) -> int:
    """The bits of SigCgt; none where that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise DumpError(f"process {pid} cannot be looked at: {error.strerror}") from error
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return int(caught[1], 16) if caught else 0


def _is_in(caught: int, number: int) -> bool:
    return bool(caught >> (number - 1) & 1)


def dump_by_signal(process: LocalProcess, number: int, *, timeout_seconds: float) -> tuple[ThreadStack, ...]:
    """Sends the signal, and reads what the process writes.

    Args:
        process: Inside of `diagnose()`.
        number: What `choose_signal` chose.
        timeout_seconds: How long to wait for the first line.

    Returns:
        The threads.

    Raises:
        DumpError: The process is gone, may not be signalled, or wrote nothing.
    """
    try:
        with process.path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            _send(process, number)
            dumps = _read_dumps(file.fileno(), timeout_seconds)
    except OSError as error:
        raise DumpError(f"process {process.pid} could not be asked: {error.strerror}") from error
    newest = newest_of(dumps)
    if newest is None:
        raise DumpError(
            f"process {process.pid} wrote no stacks to {process.path} within {timeout_seconds:g} s of "
            f"{_signal_name(number)}"
        )
    return newest.threads


def _send(process: LocalProcess, number: int) -> None:
    """By a descriptor of the process, so that no other one of the same pid gets it."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if not _holds(process.pid, process.path):
            raise DumpError(f"process {process.pid} has left diagnose() meanwhile")
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _read_dumps(descriptor: int, timeout_seconds: float) -> list[Dump]:
    parser, dumps = DumpParser(), []
    last = time.monotonic()
    patience, deadline = timeout_seconds, last + timeout_seconds
    while True:
        data = os.read(descriptor, 1 << 20)
        now = time.monotonic()
        if data:
            complete = parser.feed(data)
            dumps += complete
            last, patience = now, _CUT_SECONDS if complete and complete[-1].is_cut else _QUIET_SECONDS
        elif now > deadline or now - last > patience:
            return dumps + parser.finish()
        else:
            time.sleep(_POLL_SECONDS)
