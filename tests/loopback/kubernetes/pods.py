"""Pods: folders of this machine in which commands run."""

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Command:
    """A command that was run in a pod.

    Attributes:
        argv: The program and its arguments, as received.
        container: The container.
        process: The process; None if the program does not exist.
    """

    argv: tuple[str, ...]
    container: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code, with signals as in a shell; None while it runs."""
        return 127 if self.process is None else exit_code(self.process.poll())

    def kill(self) -> None:
        """Kill the process group."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@dataclass
class Pod:
    """A running pod.

    Attributes:
        name: The name.
        namespace: The namespace.
        containers: The names of its containers.
        folder: The working and home directory of commands.
        environment: The environment variables of commands besides PATH, HOME, HOSTNAME and TMPDIR.
        ports: The local port for each port of the pod. Other ports map to the same port of this machine.
        dies_after_seconds: How long it lives after the first command or connection to a port; None means forever.
        log: The output of `kubectl logs`.
        log_times: When each of its lines was printed, as RFC 3339 in UTC; for `--timestamps` and `--since-time`.
        commands: The commands run in it, oldest first.
        is_alive: False once it has died.
        on_death: Called when it dies.
    """

    name: str
    namespace: str
    containers: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)
    dies_after_seconds: float | None = None
    log: str = ""
    log_times: Sequence[str] = ()
    commands: list[Command] = field(default_factory=list)
    is_alive: bool = True
    on_death: Callable[["Pod"], None] = field(default=lambda pod: None, repr=False)
    _breakers: dict[Callable[[], None], bool] = field(default_factory=dict, repr=False)
    _death: threading.Timer | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def start(self, argv: Sequence[str], container: str, *, with_stdin: bool) -> subprocess.Popen[bytes]:
        """Start a program and add it to `commands`; without `with_stdin`, its input is empty.

        Raises:
            OSError: The program cannot be started.
        """
        command = Command(tuple(argv), container)
        with self._lock:
            self.commands.append(command)
            if not self.is_alive:
                raise ProcessLookupError(errno.ESRCH, "the pod has died")
            command.process = subprocess.Popen(
                list(argv),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE if with_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            return command.process

    @contextmanager
    def used(self, breaks: Callable[[], None], *, by_command: bool) -> Iterator[None]:
        """Register a client for the duration of the block. The first one starts the timer of `dies_after_seconds`.

        Args:
            breaks: Breaks the client's connection.
            by_command: True for a command, which reports its exit code unless the whole node dies.
        """
        with self._lock:
            self._breakers[breaks] = by_command
            if self.dies_after_seconds is not None and self._death is None:
                self._death = threading.Timer(self.dies_after_seconds, self.die)
                self._death.daemon = True
                self._death.start()
        try:
            yield
        finally:
            with self._lock:
                self._breakers.pop(breaks, None)

    def die(self, *, with_its_node: bool = False) -> None:
        """Kill it as if it ran out of memory: commands exit with 137, and connections to its ports break.

        Args:
            with_its_node: Break the connections of commands, too, so that clients receive no exit codes.
        """
        with self._lock:
            self.is_alive = False
            breakers = [breaks for breaks, by_command in self._breakers.items() if with_its_node or not by_command]
            self._breakers.clear()
            if self._death is not None:
                self._death.cancel()
        self.on_death(self)
        for breaks in breakers:
            breaks()
        for command in self.commands:
            command.kill()

    def log_answer(self, query: Mapping[str, str]) -> str:
        """Return the log, as the API does by its parameters; without `log_times`, all of it."""
        if not self.log_times:
            return self.log
        lines = list(zip(self.log_times, self.log.splitlines(keepends=True), strict=True))
        since = query.get("sinceTime", "")[: len("2026-11-21T05:36:43")]
        lines = [(stamp, line) for stamp, line in lines if stamp >= since]
        if tail := query.get("tailLines"):
            lines = lines[max(0, len(lines) - int(tail)) :]
        return "".join(f"{stamp} {line}" if query.get("timestamps") == "true" else line for stamp, line in lines)

    def _environment(self) -> dict[str, str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"HOME": str(self.folder), "HOSTNAME": self.name, "TMPDIR": str(temporary)}
        return {"PATH": os.environ.get("PATH", os.defpath), **own, **self.environment}


def exit_code(code: int | None) -> int | None:
    """Convert a return code to an exit code with signals as in a shell; None stays None."""
    return code if code is None or code >= 0 else 128 - code


def running(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod in the form of the API with the status of a running one."""
    spec: dict[str, Any] = {"nodeName": "node-1", **resource["spec"]}
    statuses = [
        {
            "name": container["name"],
            "ready": True,
            "restartCount": 0,
            "image": container.get("image", ""),
            "imageID": "",
            "state": {"running": {}},
        }
        for container in spec["containers"]
    ]
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": ready, "containerStatuses": statuses}
    return {**resource, "spec": spec, "status": status}
