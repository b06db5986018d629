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
    """What was run in a pod.

    Attributes:
        argv: The program and its arguments, as they came.
        container: Where in the pod.
        process: The process; None if there is no such program.
    """

    argv: tuple[str, ...]
    container: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """What it ended with, as a shell counts signals; None while it runs."""
        return 127 if self.process is None else exit_code(self.process.poll())

    def kill(self) -> None:
        """End it and what it started."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@dataclass
class Pod:
    """A pod that runs.

    Attributes:
        name: Its name.
        namespace: Where it is.
        containers: Their names.
        folder: Where commands run, and their home.
        environment: What commands find in their environment beside PATH, HOME, HOSTNAME and TMPDIR.
        ports: The port of this machine that stands for a port of the pod; others stand for themselves.
        dies_after_seconds: How long it lives after the first command, or connection to a port. None is for ever.
        log: What `kubectl logs` shows.
        commands: What was run in it, oldest first.
        is_alive: Whether it can be used.
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
    commands: list[Command] = field(default_factory=list)
    is_alive: bool = True
    on_death: Callable[["Pod"], None] = field(default=lambda pod: None, repr=False)
    _breakers: dict[Callable[[], None], bool] = field(default_factory=dict, repr=False)
    _death: threading.Timer | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def start(self, argv: Sequence[str], container: str, *, with_stdin: bool) -> subprocess.Popen[bytes]:
        """Start a program and note it in `commands`; without `with_stdin` it has nothing to read.

        Raises:
            OSError: It cannot be started.
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
        """While a client uses it. From the first use on its life is counted, if it has a length.

        Args:
            breaks: Breaks the client's connection.
            by_command: Whether it is a command, which is told of its end unless the whole node dies.
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
        """End it as if it ran out of memory: its commands end with 137, connections to its ports break.

        Args:
            with_its_node: Break the connections of commands too, so that nobody is told how these end.
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

    def _environment(self) -> dict[str, str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"HOME": str(self.folder), "HOSTNAME": self.name, "TMPDIR": str(temporary)}
        return {"PATH": os.environ.get("PATH", os.defpath), **own, **self.environment}


def exit_code(code: int | None) -> int | None:
    """Returns what a process ended with as a shell counts signals, and None as None."""
    return code if code is None or code >= 0 else 128 - code


def running(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a pod, as the API has it, with the status of one that runs."""
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
