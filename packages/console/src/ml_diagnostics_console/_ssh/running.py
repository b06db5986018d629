"""Runs the program of a route with the user's terminal, and shows why it failed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError
from ml_diagnostics_common.interrupts import interrupts_put_off
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._ssh.routes import SHELL, Route

__all__ = ["run_route"]

_LAST_BYTES: Final = 4_096
_JOIN_SECONDS: Final = 5.0
_END_SECONDS: Final = 5.0
_NO_RIGHTS: Final = re.compile(r"\(Forbidden\)|is forbidden|PERMISSION_DENIED|Required '[\w.]+' permission", re.ASCII)
_NO_PROGRAM: Final = re.compile(r"executable file not found|no such file or directory|exit code 12[67]", re.IGNORECASE)
_ENDED: Final = re.compile(
    r"container not (?:running|found)|is not running|completed pod|NotFound|not found", re.IGNORECASE
)
_NO_KEY: Final = re.compile(r"Permission denied \(|Host key verification failed", re.ASCII)


def run_route(route: Route, console: Console, *, has_command: bool) -> int:
    """Print the command line, run it, and return its exit code.

    Args:
        route: The route, which has a program.
        console: The terminal.
        has_command: True if the user gave a command, False for a shell.

    Raises:
        CommandError: The program cannot be started.
    """
    console.notify(f"$ {shlex.join(route.argv)}")
    process: subprocess.Popen[bytes] | None = None
    last = bytearray()
    try:
        with interrupts_put_off():
            process = _started(route)
        passing = threading.Thread(target=_pass_on, args=(process.stderr, last), daemon=True)
        passing.start()
        code = process.wait()
    except KeyboardInterrupt:
        if process is not None:
            _end(process)
        raise
    passing.join(_JOIN_SECONDS)
    if code and (reason := _reason(route, bytes(last).decode("utf-8", "replace"), has_command=has_command)):
        console.warn(reason)
    return code if code >= 0 else 128 - code


def _started(route: Route) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(route.argv, stderr=subprocess.PIPE)
    except FileNotFoundError as error:
        raise NotFoundError(f"{route.argv[0]} is not installed on this machine: {_installation(route.kind)}") from error
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot start {one_line(route.argv[0], 100)}: {error}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a program to which the terminal has sent Ctrl-C as well; end one that does not end by itself."""
    for end in (process.terminate, process.kill):
        try:
            process.wait(_END_SECONDS)
            return
        except subprocess.TimeoutExpired:
            end()
    with suppress(subprocess.TimeoutExpired):  # It waits for a disk or a device, and ends after that.
        process.wait(_END_SECONDS)


def _pass_on(stream: IO[bytes] | None, last: bytearray) -> None:
    """Pass standard error on as it arrives, prompts too, and keep its end."""
    assert stream is not None
    with stream:
        while data := os.read(stream.fileno(), _LAST_BYTES):
            last += data
            del last[:-_LAST_BYTES]
            sys.stderr.buffer.write(data) if hasattr(sys.stderr, "buffer") else sys.stderr.write(
                data.decode("utf-8", "replace")
            )
            sys.stderr.flush()


def _installation(kind: str) -> str:
    if kind == "kubectl":
        return "https://kubernetes.io/docs/tasks/tools/, or `gcloud components install kubectl`"
    return "https://cloud.google.com/sdk/docs/install" if kind == "gcloud" else "install the OpenSSH client"


def _reason(route: Route, errors: str, *, has_command: bool) -> str:
    """Return what the last lines of a program that failed mean, and what to do; empty if they say it themselves."""
    if route.kind == "kubectl":
        return _reason_of_kubectl(route, errors, has_command=has_command)
    if _NO_RIGHTS.search(errors):
        return (
            f"you may not connect to {route.where}: ask for the role `roles/compute.osAdminLogin` or `roles/tpu.admin`"
        )
    if _NO_KEY.search(errors):
        if route.kind == "gcloud":
            without = [
                word
                for word in route.argv[: _end_of_options(route.argv)]
                if not word.startswith(("--plain", "--command"))
            ]
            return (
                f"{route.where} does not accept your key, and this command adds none; to add it: {shlex.join(without)}"
            )
        return f"{route.where} does not accept your key, and this command adds none"
    return ""


def _reason_of_kubectl(route: Route, errors: str, *, has_command: bool) -> str:
    namespace = next((word for word in route.argv if word.startswith("--namespace=")), "")
    context = next((word for word in route.argv if word.startswith("--context=")), "")
    options = shlex.join([word for word in (context, namespace) if word])
    if _NO_RIGHTS.search(errors):
        return (
            f"you may not start programs in {route.where}: ask for `create` on `pods/exec`; check it with "
            f"`kubectl auth can-i create pods --subresource=exec {options}`"
        )
    if not has_command and _NO_PROGRAM.search(errors):
        pod = next((word for word in route.argv if word.startswith("pod/")), "")
        container = next((word.partition("=")[2] for word in route.argv if word.startswith("--container=")), "")
        return (
            f"the image of {route.where} has no shell ({SHELL}). To add a container with one, which changes the pod: "
            f"kubectl debug -it {options} {pod} --image=busybox --target={container}"
        )
    if _ENDED.search(errors):
        return f"{route.where} has ended since it was looked up"
    return ""


def _end_of_options(argv: list[str]) -> int:
    return argv.index("--") if "--" in argv else len(argv)
