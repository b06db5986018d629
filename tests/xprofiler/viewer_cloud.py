"""A loopback Google Cloud with scripted viewer VMs, and the command as a process beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..loopback.compute import ComputeServer
from ..waiting import wait_until

ZONE = "us-central1-a"
BUCKET = "test-bucket"
LOGS = f"gs://{BUCKET}/run"
READY = {
    "state": "ready",
    "step": "serving",
    "startup_script_begin_ts": 1,
    "tb_launched_ts": 2,
    "tb_attempts_count": 3,
    "tb_backend_id": "4f1e",
}
INSTALLING = {"state": "starting", "step": "installing XProf"}
FAILED = {"state": "failed", "step": "installing XProf", "error": "exit code 1: no such release"}


class ViewerCloud:
    """Compute and Cloud Storage; each new VM reports `statuses`, one after the other."""

    def __init__(self, compute: ComputeServer, folder: Path) -> None:
        self.compute = compute
        self.statuses: Sequence[Mapping[str, Any]] = [INSTALLING, READY]
        self.pause_seconds = 0.2
        self.home = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XPROFILER_")},
            **compute.environment(),
            "CLOUDSDK_CONFIG": str(folder),
            "XDG_RUNTIME_DIR": str(folder),
        }
        compute.on_instance_created(self._play)

    def _play(self, instance: Mapping[str, Any]) -> None:
        for status in self.statuses:
            time.sleep(self.pause_seconds)
            self.set_status(instance["name"], status)

    def set_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Write the status of a VM."""
        self.compute.storage.write(BUCKET, f"run/{name}/startup_output.json", json.dumps(status).encode())

    def add_viewer(self, name: str, **fields: Any) -> dict[str, Any]:
        """Add an existing viewer."""
        defaults = {"labels": {"xprofiler_version": "1-0-0"}, "metadata": {"xprofiler_log_directory": LOGS}}
        return self.compute.add_instance(name, ZONE, **{**defaults, **fields})

    def names(self) -> list[str]:
        """Return the existing VMs."""
        return [instance["name"] for instance in self.compute.instances()]

    def is_settled(self) -> bool:
        """True if no requested operation is still running."""
        url = f"{self.compute.url}/compute/v1/projects/test-project/zones/{ZONE}/operations"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return all(operation["status"] == "DONE" for operation in json.load(answer).get("items", ()))

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the command."""
        return {**self._environment, "HOME": str(self.home), **more}

    def start(self, *arguments: str, **environment: str) -> Running:
        """Start `xprofiler`."""
        return Running(arguments, self.environment(**environment))

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `xprofiler` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "xprofiler", *arguments],
            env=self.environment(**environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def wait_for(self, operation: str, *, storage: bool = False) -> None:
        """Wait until the server has received a request."""
        server = self.compute.storage if storage else self.compute
        wait_until(lambda: any(request.operation == operation for request in server.requests))


class Running:
    """The running command."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "xprofiler", *arguments],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._characters: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        while character := self.process.stderr.read(1):
            self._characters.append(character)

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return "".join(self._characters)

    def wait_for(self, text: str) -> None:
        """Wait for a text on standard error."""
        wait_until(lambda: text in self.errors or self.process.poll() is not None)
        assert text in self.errors

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Interrupt it, as Ctrl-C does."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        try:
            code = self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(10)
            if not self._reader.is_alive():  # A program that the command has left running may hold its output open.
                for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                    if pipe is not None:
                        pipe.close()
        return code
