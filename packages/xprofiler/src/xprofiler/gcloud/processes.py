"""Programs of this machine: started by argv, printed with `--verbose`, and terminated with all their children.

    with ThreadPoolExecutor() as threads, Programs(console) as programs:
        ...  # Ctrl-C ends the programs, so the threads that wait for them end, too

A program leads its own session, so that its children end with it, and Ctrl-C reaches only this process. A program that
may prompt at the terminal (for a passphrase) stays in the terminal's session instead, and receives its Ctrl-C.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError, TimedOutError
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.interrupts import interrupts_put_off

__all__ = ["Finished", "Process", "Programs"]

Process: TypeAlias = "subprocess.Popen[bytes]"

_Stream: TypeAlias = "int | IO[bytes] | None"
_TERMINATE: Final = signal.SIGTERM
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL.
_PATIENCE_SECONDS = 2.0
_SHOWN_LINES = 12
_INSTALL = {
    "gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
    "kubectl": "install it: https://kubernetes.io/docs/tasks/tools/, or `gcloud components install kubectl`",
    "ssh": "install OpenSSH's client, for example `apt-get install openssh-client`",
}


# What each program writes to standard error. gcloud's patterns are too loose for kubectl, which reports every file that
# it may not read, too.
_COMPLAINTS: Final = {
    "gcloud": (
        (Kind.INVALID, r"\*HERE\*"),  # The mark at a syntax error in a filter.
        (Kind.REFUSED, r"permission|PERMISSION_DENIED|active account|gcloud auth login"),
    ),
    "kubectl": (
        (Kind.REFUSED, r"\(Forbidden\)|\(Unauthorized\)|must be logged in|executable gke-gcloud-auth-plugin"),
        (Kind.MISSING, r"\(NotFound\)|context was not found|does not have a resource type"),
        (Kind.UNREACHABLE, r"connection to the server \S+ was refused|Unable to connect|current-context is not set"),
    ),
}


class Finished(NamedTuple):
    """The result of a program.

    Attributes:
        exit_code: The exit code; negative if a signal ended the program.
        output: Its standard output; empty if that went to a file or the terminal.
        errors: Its standard error; empty if that went to a file or the terminal.
    """

    exit_code: int
    output: bytes
    errors: bytes

    @property
    def complaint(self) -> str:
        """The last lines of its standard error, for a message; its exit code if there are none."""
        lines = self.errors.decode("utf-8", "replace").strip().splitlines()
        return "\n".join(lines[-_SHOWN_LINES:]) or f"exit code {self.exit_code}, without a message"

    def failure(self, program: Literal["gcloud", "kubectl"]) -> Kind | None:
        """Return the kind of failure of a program, by its messages; None if they do not show it."""
        return next((kind for kind, pattern in _COMPLAINTS[program] if re.search(pattern, self.complaint)), None)


class Programs:
    """Runs the programs of one command, and terminates those that still run at the end of the block.

    Thread-safe.

    Args:
        console: Receives the command line of each, with `--verbose`.
        environ: Their environment; None copies that of this process.
    """

    def __init__(self, console: Console, environ: Mapping[str, str] | None = None) -> None:
        self._console = console
        self._environ = environ
        self._lock = threading.Lock()
        self._running: dict[Process, _StartMode] = {}
        self._has_ended = False

    def __enter__(self) -> Programs:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Terminate the programs that still run."""
        self.end_all()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        stdout: IO[bytes] | None = None,
        timeout_seconds: float | None = None,
    ) -> Finished:
        """Run a program to its end.

        Args:
            argv: The program and its arguments.
            stdin: Its standard input.
            stdout: A file for its output, if that may be large; by default the output is returned.
            timeout_seconds: When to terminate it; None waits without a limit.

        Raises:
            NotFoundError: The program is not installed on this machine.
            TimedOutError: It did not end in time.
            CommandError: It cannot be started, or this command is being interrupted.
        """
        mode = _StartMode(leads_session=True, is_read=True)
        process = self._start(argv, mode, subprocess.PIPE, stdout or subprocess.PIPE, subprocess.PIPE)
        try:
            output, errors = process.communicate(stdin, timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise TimedOutError(
                f"{_shown(argv)} did not end within {timeout_seconds:g} s, and was terminated"
            ) from error
        finally:
            self.end(process)
        return Finished(process.returncode, output or b"", errors or b"")

    def run_at_terminal(self, argv: Sequence[str]) -> int:
        """Run a program that may prompt at the terminal, show its output there, and return its exit code.

        Its standard output is progress, not data, so it goes to standard error. If that is not a terminal, the output
        is shown when the program has ended: a process left in the background must not keep a pipe of ours open.

        Raises:
            NotFoundError: The program is not installed on this machine.
            CommandError: It cannot be started, or this command is being interrupted.
        """
        if self._console.err.isatty():
            return self._wait_at_terminal(argv, sys.stderr.fileno(), None)
        with tempfile.TemporaryFile() as output:
            try:
                return self._wait_at_terminal(argv, output, output)
            finally:
                output.seek(0)
                self._console.notify(output.read().decode("utf-8", "replace").rstrip(), is_progress=False)

    def _wait_at_terminal(self, argv: Sequence[str], stdout: _Stream, stderr: _Stream) -> int:
        # Without a terminal for answers, the program cannot prompt, and gets its own session.
        process = self._start(argv, _StartMode(leads_session=not _can_be_asked()), None, stdout, stderr)
        try:
            code = process.wait()
        except BaseException:
            self.end(process)
            raise
        with self._lock:
            self._running.pop(process, None)  # Its background processes, such as a tunnel, keep running.
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
        """Start a program in the background, until `end` or the end of the block.

        Args:
            argv: The program and its arguments.
            stdin: Standard input, as for `subprocess.Popen`.
            stdout: Standard output. A pipe that is not read blocks the program when it is full.
            stderr: Standard error.
            may_ask: True if it may prompt at the terminal, if there is one.

        Raises:
            NotFoundError: The program is not installed on this machine.
            CommandError: It cannot be started, or this command is being interrupted.
        """
        mode = _StartMode(leads_session=not (may_ask and _can_be_asked()))
        return self._start(argv, mode, stdin, stdout, stderr)

    def end(self, process: Process) -> None:
        """Terminate a program and its children; kill them after two seconds."""
        with self._lock:
            mode = self._running.pop(process, None)
        if mode is not None:
            _end(process, mode)
        _close_pipes(process)

    def end_all(self) -> None:
        """Terminate all running programs in parallel, and refuse to start others."""
        with self._lock:
            self._has_ended = True
            running, self._running = self._running, {}
        for process, mode in running.items():
            _signal(process, mode, _TERMINATE)
        for process, mode in running.items():
            _end(process, mode)
            if not mode.is_read:  # The thread that reads the pipes closes them.
                _close_pipes(process)

    def _start(
        self, argv: Sequence[str], mode: _StartMode, stdin: _Stream, stdout: _Stream, stderr: _Stream
    ) -> Process:
        self._console.command(argv)
        environ = None if self._environ is None else dict(self._environ)
        with self._lock, interrupts_put_off():
            if self._has_ended:
                raise CommandError(f"{argv[0]} was not started: the command is ending")
            try:
                process = subprocess.Popen(
                    list(argv), stdin=stdin, stdout=stdout, stderr=stderr, env=environ, **_session(mode)
                )
            except FileNotFoundError as error:
                advice = _INSTALL.get(argv[0], "install it, or add its folder to PATH")
                raise NotFoundError(f"the program {argv[0]!r} is not installed on this machine: {advice}") from error
            except (OSError, ValueError) as error:
                raise CommandError(f"cannot start {_shown(argv)}: {error}") from error
            self._running[process] = mode
        return process


@dataclass(frozen=True)
class _StartMode:
    """The mode in which a program was started.

    Attributes:
        leads_session: True if it leads a session with its children, which `end` terminates.
        is_read: True if a thread reads its pipes and waits for it.
    """

    leads_session: bool
    is_read: bool = False


def _can_be_asked() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _session(mode: _StartMode) -> dict[str, Any]:
    if not mode.leads_session:
        return {}
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _end(process: Process, mode: _StartMode) -> None:
    try:
        if process.poll() is None:
            _signal(process, mode, _TERMINATE)
            process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, mode, _KILL)  # Also kills its children, which may outlive it.
        process.wait()


def _signal(process: Process, mode: _StartMode, number: int) -> None:
    """Send a signal to a program, and to its session if it leads one."""
    if mode.leads_session and sys.platform != "win32":
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
            except OSError:  # Flushing fails when the program no longer reads.
                pass


def _shown(argv: Sequence[str]) -> str:
    """Return the first arguments of a command, for a message."""
    return " ".join(argv[:4]) + (" ..." if len(argv) > 4 else "")
