"""The parent of one simulated pod, which leaves no process behind; and the start of the pod's command.

    pod_process.py watch LIFELINE MARK COMMAND ...           start a command, and end like it
    pod_process.py start PYTHONPATH DIRECTORY COMMAND ...    become a command, as a container's runtime starts it

Run by its path, without `site`: it starts in some milliseconds, and needs the standard library alone. LIFELINE is a
descriptor that becomes readable when `simulate` ends, whatever ends it; then all processes of the pod are ended. MARK
is the start of the variable by which helper processes are known that outlive the job to record its end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
_RECORDING_SECONDS = 15.0
"""The time that helpers get to record the end of the job."""
_KILL_SECONDS = 3.0
_CHECK_SECONDS = 0.05
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main(arguments: list[str]) -> int:
    """Run a command line, and return the exit code of the command: 128 and the number of the signal that ended it."""
    if arguments[0] == "start":
        return start(arguments[1], arguments[2], arguments[3:])
    return Watch(int(arguments[1]), arguments[2], arguments[3:]).run()


# --- The command of a pod -----------------------------------------------------------------------------


def start(python_path: str, directory: str, command: list[str]) -> int:
    """Become the command; return an exit code if that is impossible, with the text of a container's runtime."""
    if python_path:
        os.environ["PYTHONPATH"] = python_path
    try:
        os.chdir(directory)
        os.execvp(command[0], command)
    except FileNotFoundError:
        is_path = "/" in command[0]
        reason = "no such file or directory" if is_path else "executable file not found in $PATH"
        code = NOT_FOUND
    except (OSError, ValueError) as error:
        reason, code = getattr(error, "strerror", None) or str(error), NOT_EXECUTABLE
    print(f'exec: "{command[0]}": {reason}', file=sys.stderr, flush=True)
    return code


# --- Its parent ---------------------------------------------------------------------------------------


class Watch:
    """One command and all processes that it starts."""

    def __init__(self, lifeline: int, mark: str, command: list[str]) -> None:
        self._lifeline, self._mark, self._command = lifeline, mark.encode(), command
        self._status: int | None = None
        self._pid = 0
        os.set_inheritable(lifeline, False)
        self._woken, write = os.pipe()
        for descriptor in (self._woken, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, _ignore)
        _adopt_orphans()

    def run(self) -> int:
        """Start the command, and return its exit code when no process of it is left."""
        self._pid = os.posix_spawn(
            self._command[0], self._command, dict(os.environ), setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
        while self._reap() is None and not self._is_abandoned(10.0):
            pass
        if self._status is None:  # `simulate` is gone: the job ends first, so that its parent can still record that.
            self._end(lambda pid: pid != self._pid and not self._is_helper(pid))
            self._wait(_KILL_SECONDS, lambda: self._reap() is not None)
        self._end(lambda pid: not self._is_helper(pid))
        self._wait(_RECORDING_SECONDS, lambda: not any(_descendants()))
        self._wait(_KILL_SECONDS, lambda: not self._end(lambda _: True))
        status = self._status
        if status is None:
            return 128 + signal.SIGKILL
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _is_abandoned(self, timeout_seconds: float) -> bool:
        """Wait for a signal, and pass it on; return True once `simulate` has closed the lifeline, or is gone."""
        poller = select.poll()
        for descriptor in (self._lifeline, self._woken):
            poller.register(descriptor, select.POLLIN)
        ready = dict(poller.poll(1e3 * timeout_seconds))
        if self._woken in ready:
            for number in os.read(self._woken, 4096):
                if number in _PASSED_ON and self._status is None:
                    _send(self._pid, number)
        return self._lifeline in ready

    def _wait(self, seconds: float, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not is_done() and time.monotonic() < deadline:
            self._reap()
            time.sleep(_CHECK_SECONDS)

    def _reap(self) -> int | None:
        """Reap all processes that have ended; return the wait status of the command once it has."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._status
            if pid == self._pid:
                self._status = status
            if not pid:
                return self._status

    def _end(self, is_chosen: Callable[[int], bool]) -> bool:
        """Kill the chosen ones of all processes of the pod; return True if there were any."""
        chosen = [pid for pid in _descendants() if is_chosen(pid)]
        for pid in chosen:
            _send(pid, signal.SIGKILL)
        return bool(chosen)

    def _is_helper(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 (pathlib is slow to import)
                return b"\0" + self._mark in b"\0" + file.read()
        except OSError:
            return False


def _ignore(number: int, frame: object) -> None:
    """Do nothing: the number is read from the wake-up descriptor."""


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _adopt_orphans() -> None:
    """Become the parent of processes of the pod that lose theirs, where the system can do that."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def _descendants() -> Iterator[int]:
    """Yield all processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = [os.getpid()]
    for parent in found:
        found += children.get(parent, [])
    yield from found[1:]


def _parents() -> Iterator[tuple[int, int]]:
    """Yield each process of this machine that has not ended, and its parent."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112
        with os.popen("ps -axo pid=,ppid=") as lines:  # macOS
            for line in lines:
                pid, parent_pid = line.split()
                yield int(pid), int(parent_pid)
        return
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                yield int(name), int(parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
