"""Pods: folders of this machine in which commands run."""

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
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
        commands: What was run in it, oldest first.
        is_alive: Whether it can be used.
    """

    name: str
    namespace: str
    containers: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)
    dies_after_seconds: float | None = None
    commands: list[Command] = field(default_factory=list)
    is_alive: bool = True
    _breakers: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    def break_at_death(self, breaks: Callable[[], None]) -> None:
        """Have a connection broken when the pod dies."""
        with self._lock:
            self._breakers.append(breaks)

    def die(self) -> None:
        """Kill what runs in it and break the connections to its ports."""
        with self._lock:
            self.is_alive = False
            breakers, self._breakers = self._breakers, []
            for command in self.commands:
                command.kill()
        for breaks in breakers:
            breaks()

    def _environment(self) -> dict[str, str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"HOME": str(self.folder), "HOSTNAME": self.name, "TMPDIR": str(temporary)}
        return {"PATH": os.environ.get("PATH", os.defpath), **own, **self.environment}


def exit_code(code: int | None) -> int | None:
    """Returns what a process ended with as a shell counts signals, and None as None."""
    return code if code is None or code >= 0 else 128 - code


def pod_resource(name: str, containers: Sequence[str], labels: Mapping[str, str], node: str) -> dict[str, Any]:
    """Returns a running pod as the API shows it."""
    statuses = [
        {
            "name": container,
            "ready": True,
            "restartCount": 0,
            "image": "test",
            "imageID": "test",
            "state": {"running": {}},
        }
        for container in containers
    ]
    return {
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "containers": [{"name": container, "image": "test"} for container in containers],
            "nodeName": node,
        },
        "status": {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": statuses},
    }
