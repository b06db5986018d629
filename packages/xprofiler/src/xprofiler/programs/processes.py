"""Programs of this machine: started by argv, told of with `--verbose`, and ended with all that they started.

    with ThreadPoolExecutor() as threads, Programs(console) as programs:
        ...  # Ctrl-C ends the programs, so the threads that wait for them end, too

A program leads a session of its own, so that its children end with it and Ctrl-C reaches nobody before us. One that may
ask at the terminal (for a passphrase) stays with the terminal instead, and so does its Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, NamedTuple, TypeAlias

from xprofiler.console import Console
from xprofiler.exceptions import NotFoundError, TimedOutError, XprofilerError

__all__ = ["Finished", "Process", "Programs"]

Process: TypeAlias = "subprocess.Popen[bytes]"

_Stream: TypeAlias = "int | IO[bytes] | None"
_TERMINATE: Final = signal.SIGTERM
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows knows one way only.
_PATIENCE_SECONDS = 2.0
_SHOWN_LINES = 12
_INSTALL = {
    "gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
    "kubectl": "install it: https://kubernetes.io/docs/tasks/tools/, or `gcloud components install kubectl`",
    "ssh": "install OpenSSH's client, for example `apt-get install openssh-client`",
}


class Finished(NamedTuple):
    """How a program ended.

    Attributes:
        exit_code: Negative when a signal ended it.
        output: What it wrote to standard output; empty where that went to a file or the terminal.
        errors: The same for standard error.
    """

    exit_code: int
    output: bytes
    errors: bytes

    @property
    def complaint(self) -> str:
        """The last lines of what it said on standard error, for a message; or its exit code."""
        said = self.errors.decode("utf-8", "replace").strip()
        return "\n".join(said.splitlines()[-_SHOWN_LINES:]) or f"exit code {self.exit_code}, without a word"


class Programs:
    """The programs that one command runs; those that still run at the end of the block are ended.

    Threads may share it.

    Args:
        console: Is told of each.
        environ: Their environment; None is that of this process.
    """

    def __init__(self, console: Console, environ: Mapping[str, str] | None = None) -> None:
        self._console = console
        self._environ = environ
        self._lock = threading.Lock()
        self._running: dict[Process, _Manner] = {}
        self._has_ended = False

    def __enter__(self) -> Programs:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what still runs."""
        self.end_all()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        stdout: IO[bytes] | None = None,
        timeout_seconds: float | None = None,
    ) -> Finished:
        """Runs a program to its end.

        Args:
            argv: The program and its arguments.
            stdin: What it reads.
            stdout: A file for its output, where that may be large; else it is returned.
            timeout_seconds: When it is ended; None waits as long as it takes.

        Raises:
            NotFoundError: There is no such program on this machine.
            TimedOutError: It did not end in time.
            XprofilerError: It cannot be started, or the command is being interrupted.
        """
        manner = _Manner(leads_session=True, is_read=True)
        process = self._start(argv, manner, subprocess.PIPE, stdout or subprocess.PIPE, subprocess.PIPE)
        try:
            output, errors = process.communicate(stdin, timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise TimedOutError(f"{_shown(argv)} did not end in {timeout_seconds:g} s, and was ended") from error
        finally:
            self.end(process)
        return Finished(process.returncode, output or b"", errors or b"")

    def run_at_terminal(self, argv: Sequence[str]) -> int:
        """Runs a program that may ask at the terminal, and returns its exit code; all that it says is shown there.

        What it says on standard output is progress, too, and no data: it goes to standard error. Where that is no
        terminal it is passed on when the program has ended, since what it leaves in the background must not keep a pipe
        of ours open.

        Raises:
            NotFoundError: There is no such program on this machine.
            XprofilerError: It cannot be started, or the command is being interrupted.
        """
        if self._console.err.isatty():
            return self._wait_at_terminal(argv, sys.stderr.fileno(), None)
        with tempfile.TemporaryFile() as said:
            try:
                return self._wait_at_terminal(argv, said, said)
            finally:
                said.seek(0)
                self._console.say(said.read().decode("utf-8", "replace").rstrip())

    def _wait_at_terminal(self, argv: Sequence[str], stdout: _Stream, stderr: _Stream) -> int:
        # Where nobody can be asked, the terminal need not be shared.
        process = self._start(argv, _Manner(leads_session=not _can_be_asked()), None, stdout, stderr)
        try:
            code = process.wait()
        except BaseException:
            self.end(process)
            raise
        with self._lock:
            self._running.pop(process, None)  # What it has left in the background stays there.
        return code

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.PIPE,
        stderr: int | IO[bytes] | None = subprocess.PIPE,
        may_ask: bool = False,
    ) -> Process:
        """Starts a program that runs beside this one, until `end` or the end of the block.

        Args:
            argv: The program and its arguments.
            stdin: As `subprocess.Popen` takes it.
            stdout: The same. A pipe that nobody reads stops the program when it is full.
            stderr: The same.
            may_ask: Whether it may ask at the terminal, if there is one.

        Raises:
            NotFoundError: There is no such program on this machine.
            XprofilerError: It cannot be started, or the command is being interrupted.
        """
        manner = _Manner(leads_session=not (may_ask and _can_be_asked()))
        return self._start(argv, manner, stdin, stdout, stderr)

    def end(self, process: Process) -> None:
        """Ends a program and what it has started, if it still runs: asked first, killed after two seconds."""
        with self._lock:
            manner = self._running.pop(process, None)
        if manner is not None:
            _end(process, manner)
        _close_pipes(process)

    def end_all(self) -> None:
        """Ends all that still runs, together; nothing is started after that."""
        with self._lock:
            self._has_ended = True
            running, self._running = self._running, {}
        for process, manner in running.items():
            _signal(process, manner, _TERMINATE)
        for process, manner in running.items():
            _end(process, manner)
            if not manner.is_read:  # Else the thread that reads its pipes closes them.
                _close_pipes(process)

    def _start(self, argv: Sequence[str], manner: _Manner, stdin: _Stream, stdout: _Stream, stderr: _Stream) -> Process:
        self._console.command(argv)
        environ = None if self._environ is None else dict(self._environ)
        with self._lock:
            if self._has_ended:
                raise XprofilerError(f"{argv[0]} is not started any more: the command is ending")
            try:
                process = subprocess.Popen(
                    list(argv), stdin=stdin, stdout=stdout, stderr=stderr, env=environ, **_session(manner)
                )
            except FileNotFoundError as error:
                todo = _INSTALL.get(argv[0], "install it, or add its folder to PATH")
                raise NotFoundError(f"there is no program {argv[0]!r} on this machine: {todo}") from error
            except (OSError, ValueError) as error:
                raise XprofilerError(f"cannot start {_shown(argv)}: {error}") from error
            self._running[process] = manner
        return process


@dataclass(frozen=True)
class _Manner:
    """How a program was started.

    Attributes:
        leads_session: Whether its children are in a session that it leads, which is what `end` ends.
        is_read: Whether a thread reads its pipes and waits for it.
    """

    leads_session: bool
    is_read: bool = False


def _can_be_asked() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _session(manner: _Manner) -> dict[str, Any]:
    if not manner.leads_session:
        return {}
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _end(process: Process, manner: _Manner) -> None:
    try:
        if process.poll() is None:
            _signal(process, manner, _TERMINATE)
            process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, manner, _KILL)  # Its children, too, which may outlive it.
        process.wait()


def _signal(process: Process, manner: _Manner, number: int) -> None:
    """Sends a signal to a program, and to all of the session that it leads."""
    if manner.leads_session and sys.platform != "win32":
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
    else:
        process.send_signal(number)


def _close_pipes(process: Process) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # What was still to be written to it has no reader any more.
                pass


def _shown(argv: Sequence[str]) -> str:
    """The beginning of a command, for a message."""
    return " ".join(argv[:4]) + (" ..." if len(argv) > 4 else "")
