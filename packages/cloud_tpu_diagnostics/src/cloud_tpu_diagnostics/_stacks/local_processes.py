"""Processes of this machine that write their stacks on a signal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError
from ml_diagnostics_common.processes import handled_signals

from cloud_tpu_diagnostics._collect import trace_file
from cloud_tpu_diagnostics._dumps.parser import Dump, DumpParser, ThreadStack
from cloud_tpu_diagnostics._signals import signal_name
from cloud_tpu_diagnostics._stacks.trace_files import newest_of, parse_name

__all__ = ["DumpError", "LocalProcess", "Question", "ask", "choose_signal", "find_processes", "signal_number"]

_QUIET_SECONDS: Final = 0.2
"""A dump of 100 threads takes 0.04 s; so long after its last line it is complete."""
_CUT_SECONDS: Final = 3.0
"""The time after a dump that was cut at 100 threads, by which the main thread has written its own stack."""
_POLL_SECONDS: Final = 0.01
_READ_BYTES: Final = 1 << 20
_SENTENCE_BYTES: Final = 200
_IN_SENTENCE: Final = b": for stack traces at any time, "
_SENTENCE: Final = re.compile(
    rb"^INFO: SIGUSR1 is \w+" + _IN_SENTENCE + rb"(?:send (?P<signal>SIG[A-Z0-9+]+)|no signal is free)",
    re.MULTILINE,
)
"""`_collect.dump_requests` writes this if the signal for stack traces is not SIGUSR1, and when that changes."""


class DumpError(DiagnosticsError):
    """A process could not be signalled, or wrote no stacks."""


class LocalProcess(NamedTuple):
    """A live process inside `diagnose()`."""

    pid: int
    host: str
    path: Path
    """Its trace file, which it holds open."""


def find_processes(folder: Path | None = None) -> tuple[LocalProcess, ...]:
    """Return the live processes with trace files in a folder, or in a folder in it.

    A file's name alone proves nothing: its process may be gone and its id used again, and any user may put a link to an
    open file of any process there. So the process must hold this very file open for appending.

    Args:
        folder: The folder; None is those of `diagnose()`.
    """
    found = {}
    searched = [folder] if folder is not None else trace_file.folders()
    for path in sorted(path for each in searched for path in each.glob("**/stack_trace_*.txt")):
        name = parse_name(path.name)
        if name is not None and _holds(name.pid, path):
            found[name.pid] = LocalProcess(name.pid, name.host, path)
    return tuple(found.values())


def _holds(pid: int, path: Path) -> bool:
    try:
        wanted = path.lstat()
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return False
    if not stat.S_ISREG(wanted.st_mode) or wanted.st_uid not in (owner, 0):
        return False
    return any((held.st_dev, held.st_ino) == (wanted.st_dev, wanted.st_ino) for held in _files_appended_to(pid))


def _files_appended_to(pid: int) -> Iterator[os.stat_result]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            flags = re.search(r"^flags:\s*([0-7]+)$", Path(f"/proc/{pid}/fdinfo/{link.name}").read_text(), re.MULTILINE)
            if flags is not None and int(flags[1], 8) & os.O_APPEND:
                yield link.stat()
        except OSError:
            continue


def choose_signal(process: LocalProcess, wanted: int | None = None) -> int:
    """Return the signal that makes the process write its stacks, and nothing else.

    Args:
        process: The process.
        wanted: The user's choice; None is the signal in the trace file, else SIGUSR1.

    Raises:
        ConfigurationError: The trace file names a signal that does not exist here.
        DumpError: The process does not catch the signal, which would then kill it, or may use it for something else.
    """
    caught = _handled_signals(process.pid)
    sentence = None if wanted else _newest_sentence(process.path)
    if wanted:
        number = wanted
    elif sentence is not None:
        if sentence["signal"] is None:
            raise DumpError(f"process {process.pid} uses every signal itself, and has none left for stack traces")
        number = signal_number(sentence["signal"].decode())
    else:
        number = signal.SIGUSR1
        if {signal.SIGUSR1, signal.SIGUSR2} <= caught:
            raise DumpError(
                f"process {process.pid} catches both SIGUSR1 and SIGUSR2, perhaps one of them for another purpose; its "
                "log names the one for stack traces: give that one with --signal"
            )
    if number not in caught:
        raise DumpError(f"process {process.pid} does not catch {signal_name(number)}, which would end it: not sent")
    return number


def _newest_sentence(path: Path) -> re.Match[bytes] | None:
    """Return the last statement on the signal, anywhere in the file: the program may install a handler at any time."""
    try:
        with path.open("rb") as file:
            end, behind = file.seek(0, os.SEEK_END), b""
            while end > 0:
                start = max(0, end - _READ_BYTES)
                file.seek(start)
                data = file.read(end - start) + behind
                sentences = list(_SENTENCE.finditer(data)) if _IN_SENTENCE in data else []  # Ten times as fast.
                if sentences:
                    return sentences[-1]
                end, behind = start, data[:_SENTENCE_BYTES]
    except OSError:
        pass
    return None


def signal_number(text: str) -> int:
    """Return the number of `SIGUSR2`, `USR2`, `SIGRTMIN+3` or `12`.

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
        raise ConfigurationError(f"unknown signal {text!r}: give a name such as SIGUSR2 or SIGRTMIN+2, or a number")
    return number


def _handled_signals(pid: int) -> frozenset[int]:
    try:
        return handled_signals(pid)
    except OSError as error:
        raise DumpError(f"process {pid} cannot be inspected: {error.strerror}") from error


class Question(NamedTuple):
    """A process that got the signal; what it writes from then on is its answer."""

    process: LocalProcess
    number: int
    file: BinaryIO

    def answer(self, *, timeout_seconds: float) -> tuple[ThreadStack, ...]:
        """Return the stacks that the process writes; once.

        Args:
            timeout_seconds: How long to wait for the first line.

        Returns:
            The threads.

        Raises:
            DumpError: It wrote nothing.
        """
        pid, path = self.process.pid, self.process.path
        try:
            with self.file:
                newest = newest_of(_read_dumps(self.file.fileno(), timeout_seconds))
        except OSError as error:
            raise DumpError(f"what process {pid} wrote to {path} could not be read: {error.strerror}") from error
        if newest is None:
            raise DumpError(
                f"process {pid} wrote no stacks to {path} within {timeout_seconds:g} s of {signal_name(self.number)}"
            )
        return newest.threads


def ask(process: LocalProcess, number: int) -> Question:
    """Send the signal.

    Args:
        process: The process.
        number: The result of `choose_signal`.

    Raises:
        DumpError: The process is gone, or may not be signalled.
    """
    try:
        with contextlib.ExitStack() as undoing:
            file = undoing.enter_context(process.path.open("rb"))
            file.seek(0, os.SEEK_END)
            _send(process, number)
            undoing.pop_all()
    except OSError as error:
        raise DumpError(f"process {process.pid} could not be signalled: {error.strerror}") from error
    return Question(process, number, file)


def _send(process: LocalProcess, number: int) -> None:
    """Send the signal by a descriptor of the process, so that no other one with the same pid gets it."""
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
        data = os.read(descriptor, _READ_BYTES)
        now = time.monotonic()
        if data:
            complete = parser.feed(data)
            dumps += complete
            last, patience = now, _CUT_SECONDS if complete and complete[-1].is_cut else _QUIET_SECONDS
        elif now > deadline or now - last > patience:
            return dumps + parser.finish()
        else:
            time.sleep(_POLL_SECONDS)
