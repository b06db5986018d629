"""The real kubectl, before a loopback cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..loopback.kubernetes import KubernetesServer

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
OVER_SPDY = {"KUBECTL_PORT_FORWARD_WEBSOCKETS": "false", "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}


@dataclass
class Done:
    """The outcome of a kubectl."""

    code: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.output.decode()


@dataclass
class Kubectl:
    """kubectl for one cluster."""

    server: KubernetesServer
    settings: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str | bytes, stdin: bytes = b"") -> Done:
        ended = subprocess.run(
            ["kubectl", *arguments], env=self.environment, input=stdin, capture_output=True, timeout=60
        )
        return Done(ended.returncode, ended.stdout, ended.stderr.decode())

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.server.environment(), **self.settings}

    @contextmanager
    def forwarding(self, target: str, port: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
        """Forward a local port to a port of a pod; yield the local port and the kubectl process."""
        command = ["kubectl", "port-forward", target, f":{port}"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline().decode()
                found = re.search(r":(\d+) ->", line)
                assert found is not None, f"{line}{process.communicate()}"
                yield int(found[1]), process
            finally:
                process.terminate()
                process.communicate()


def manifest(folder: Path, text: str) -> str:
    """Write objects to a file and return its path."""
    path = folder / "objects.yaml"
    path.write_text(text)
    return str(path)
