"""A sidecar: a helper process beside the job, as the job sees it. `sidecar_parent` is the same connection from within.

The two ends of a socket pair connect them: the job keeps one, the other is the sidecar's stdin, stdout and stderr. A
message is a line of JSON, an object with a `kind`. The first message to the sidecar has its settings; the first from it
is of the kind `hello`. Both sides see each other's death without the socket too, since forked children of the job may
have its end open: the sidecar by a descriptor of the job's process, the job by the sidecar's pid.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import json
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.process_hooks import PROCESS_START_LOCK
from ml_diagnostics_common.processes import has_ended, process_descriptor, wait_readable
from ml_diagnostics_common.worker import start

if TYPE_CHECKING:
    import subprocess

__all__ = ["IN_SIDECAR", "Sidecar", "child_environment", "python_argv"]

IN_SIDECAR: Final = "ML_DIAGNOSTICS_SIDECAR"
"""Environment variable of a sidecar: the module that it runs."""

_MOST_UNSENT_BYTES = 4 * 2**20
_READ_BYTES = 2**16
_REAP_SECONDS = 5.0
"""The wait for the end of a sidecar; later its pid may be that of another child."""
_REAP_STEP_SECONDS = 0.05
_DARWIN_NO_SIGPIPE = 0x1022
"""SO_NOSIGPIPE in sys/socket.h; Python has no name for it."""


class Sidecar:
    """Starts a process that runs `main` of a module, and exchanges messages with it.

    The process leads a session of its own, so neither Ctrl-C nor a signal to the job's process group reaches it. It
    uses this process's diagnostics folder and finds this process's modules.

    Args:
        module: The module's full name.
        settings: Its settings, which it receives as `sidecar_parent.Parent.settings`.
        descriptors: Descriptors that it inherits, by name; their numbers are above 2.
        is_detached: True for a process that is not a child of this one: a job that waits for all its children must not
            wait for a process that waits for the job. It runs a bare Python (see `python_argv`).

    Raises:
        OSError: It cannot be started. An interpreter that is shutting down may raise other exceptions.
    """

    def __init__(
        self,
        module: str,
        settings: Mapping[str, Any],
        *,
        descriptors: Mapping[str, int] | None = None,
        is_detached: bool = True,
    ) -> None:
        if getattr(sys, "frozen", False):
            raise FileNotFoundError("this program is frozen (sys.frozen), so it has no Python to run a sidecar with")
        self._owner = os.getpid()
        self._is_detached = is_detached
        self._lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
        self._unsent = bytearray()
        self._received = b""
        job = process_descriptor(self._owner)
        job = None if job is None else with_high_number(job)
        inherited = {**(descriptors or {}), **({} if job is None else {"job": job})}
        try:
            self._start(module, inherited)
        finally:
            if job is not None:
                os.close(job)
        self.pid = None if is_detached else self._process.pid
        """Known after its `hello` if it is detached."""
        self.send({"settings": settings, "pid": self._owner, "descriptors": inherited})

    def _start(self, module: str, inherited: Mapping[str, int]) -> None:
        argv = python_argv(module, is_detached=self._is_detached)
        # A child that another thread forks while we have the sidecar's end of the socket would keep it open: we would
        # not see that the sidecar has closed it.
        with PROCESS_START_LOCK.held():
            import subprocess  # Here, since most programs start no sidecar; held, since forks must wait for imports.

            # Not a pipe: writing to one without a reader raises SIGPIPE, which kills jobs that do not ignore it.
            ours, theirs = _socket.socketpair()
            if sys.platform == "darwin":
                ours.setsockopt(_socket.SOL_SOCKET, _DARWIN_NO_SIGPIPE, 1)
            self._socket = Descriptor(with_high_number(ours.detach()))
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=theirs.fileno(),
                    pass_fds=list(inherited.values()),
                    env={**child_environment(), IN_SIDECAR: module},
                    start_new_session=True,
                )
            finally:
                theirs.close()

    @property
    def is_connected(self) -> bool:
        """False in a forked child, and once the job or this object has closed the socket."""
        return os.getpid() == self._owner and self._socket.number() is not None

    # --- Messages -------------------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; never waits or raises. What the sidecar does not read yet is sent by later calls."""
        if os.getpid() != self._owner:
            return
        try:
            # Newline first: a message that is cut off does not spoil the next one.
            line = b"\n" + json.dumps(message, default=str).encode("utf-8", "replace") + b"\n"
            with self._lock:
                if len(self._unsent) + len(line) <= _MOST_UNSENT_BYTES:
                    self._unsent += line
                else:
                    LOSSES.add("sidecar: it does not read")
                self._send_unsent()
        except Exception as error:
            LOSSES.add(f"sidecar: {type(error).__name__}")

    def _send_unsent(self) -> None:
        with self._lock:
            number = self._socket.number()
            if not self._unsent or number is None:
                return
            data = bytes(self._unsent)
            self._unsent.clear()  # Now, since a signal handler that sends a message may interrupt what follows.
            end = _socket.socket(fileno=number)
            try:
                end.setblocking(False)  # Whatever socket.setdefaulttimeout was given.
                sent = end.send(data, getattr(_socket, "MSG_NOSIGNAL", 0))
            except BlockingIOError:
                sent = 0
            except OSError:  # It has ended.
                sent = len(data)
            finally:
                end.detach()
            self._unsent[:0] = data[sent:]

    def receive(self, timeout_seconds: float = 1.0) -> list[dict[str, Any]]:
        """Wait for messages, and send what `send` could not.

        A line that is not a message, such as those of a traceback, becomes one of the kind `output`, with a `text`.

        Returns:
            Messages in order; none after the timeout.

        Raises:
            EOFError: The sidecar has ended and everything from it was received, or the job has closed the socket.
        """
        if (number := self._socket.number()) is None:
            raise EOFError("the program has closed the socket to its sidecar")
        poller = select.poll()
        poller.register(number, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        events = dict(poller.poll(1e3 * timeout_seconds)).get(number, 0)
        if self._socket.number() is None:  # Its number may be that of a file of the program now.
            raise EOFError("the program has closed the socket to its sidecar")
        if events & select.POLLOUT:
            self._send_unsent()
        if not events & ~select.POLLOUT:
            # It may have sent something after the timeout and before its death.
            if self.has_ended() and not wait_readable([number], 0):
                raise EOFError("the sidecar has ended")
            return []
        try:
            data = os.read(number, _READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:  # It ended without reading everything.
            data = b""
        if self._is_detached:
            self._process.wait()  # The launcher: it exits as soon as it has forked the sidecar.
        if not data:
            raise EOFError("the sidecar has ended")
        *lines, rest = (self._received + data).split(b"\n")
        self._received = rest[-_READ_BYTES:]
        return [self._message(line) for line in lines if line.strip()]

    def _message(self, line: bytes) -> dict[str, Any]:
        try:
            message: dict[str, Any] = json.loads(line)
            if message["kind"] == "hello":
                self.pid = message["pid"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"kind": "output", "text": line[:500].decode("utf-8", "replace")}
        return message

    # --- Its end --------------------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Return True if the process has ended."""
        if not self._is_detached:
            return self._process.poll() is not None
        return self.pid is not None and has_ended(self.pid)

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code: negative for a signal.

        If the sidecar is detached, that process is its launcher, which exits as soon as it has forked the sidecar.

        Raises:
            subprocess.TimeoutExpired: It has not.
        """
        return self._process.wait(timeout_seconds)

    def kill(self) -> None:
        """End a process that is not detached immediately."""
        self._process.kill()

    def end_messages(self) -> None:
        """Let the sidecar read the end of the messages, whichever other processes have this end open."""
        if not self.is_connected or (number := self._socket.number()) is None:
            return
        end = _socket.socket(fileno=number)
        try:
            end.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # It has ended.
        finally:
            end.detach()
        self._start_reaping()

    def close(self) -> None:
        """Close the socket: nothing is sent or received afterwards. The sidecar is not waited for."""
        with self._lock:  # `_send_unsent` must not use its number any more.
            self._unsent.clear()
            self._socket.close()
        self._start_reaping()

    def _start_reaping(self) -> None:
        """Reap a detached sidecar if this is process 1 of a container, which gets all orphans as its children."""
        if self._is_detached and self.pid is not None and os.getpid() == self._owner == 1:
            start(self._reap, "ml-diagnostics-reap")

    def _reap(self) -> None:
        """Wait a while for the end of a detached sidecar, so that no zombie is left."""
        deadline = time.monotonic() + _REAP_SECONDS
        try:
            while self.pid is not None and os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(_REAP_STEP_SECONDS)
        except ChildProcessError:
            pass  # Another process got it, or the job has waited for all its children.


def python_argv(module: str, *, is_detached: bool = False) -> list[str]:
    """Return the command line that runs `main` of a module in a Python that finds this process's modules.

    Args:
        module: The module's full name.
        is_detached: True for a process that forks itself off, and for a bare Python: without the `site` module, which
            runs the .pth files of all packages, and without the variables of the environment that change Python. It
            starts in half the time and memory.

    Raises:
        FileNotFoundError: This process does not know the Python that it runs in.
    """
    if not sys.executable:
        raise FileNotFoundError("this Python does not know its own executable (sys.executable is empty)")
    if is_detached:
        # Without PYTHONHOME it might not even find its standard library.
        flags = ["-s", "-S"] if os.environ.get("PYTHONHOME") else ["-I", "-S"]
    else:
        states = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
        flags = [flag for flag, is_set in states.items() if is_set]
    # The folder that a job runs in may contain a logging.py or a json.py, so the job's folders follow the sidecar's.
    program = (
        ("import os\nif os.fork(): os._exit(0)\n" if is_detached else "")
        + "import sys\n"
        + "sys.path[:] = [folder for folder in sys.path if folder]\n"
        + "sys.path += [folder for folder in sys.argv[1:] if folder not in sys.path]\n"
        + f"from {module} import main\n"
        + "main()\n"
    )
    # Warnings are for the developers of what the process imports, and must not become errors there.
    return [sys.executable, "-W", "ignore", *flags, "-c", program, *_module_folders()]


def child_environment() -> dict[str, str]:
    """Return this process's environment, for a child that uses the same diagnostics folder."""
    names = list(os.environ)  # In one call: threads may change it meanwhile.
    values = ((name, os.environ.get(name)) for name in names)
    return {
        **{name: value for name, value in values if value is not None},
        # A relative one means another folder if the child changes its working directory.
        "ML_DIAGNOSTICS_DIR": str(diagnostics_directory()),
    }


def _module_folders() -> list[str]:
    """Return the folders of `sys.path` that can be arguments; its empty entry is the working directory."""
    try:
        here = str(Path.cwd())
    except OSError:  # It was deleted.
        here = ""
    folders = [folder or here for folder in sys.path if isinstance(folder, str)]
    return [folder for folder in folders if folder and _can_be_an_argument(folder)]


def _can_be_an_argument(folder: str) -> bool:
    try:
        return b"\0" not in os.fsencode(folder)
    except UnicodeEncodeError:
        return False
