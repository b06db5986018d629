"""A tunnel to a viewer VM that outlives the command: an ssh process in the background, and its control socket.

The tunnel is closed through the control socket. The socket is in a folder that only this user can access, beside a
file that describes the tunnel.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.errors import CommandError, TimedOutError

from xprofiler.gcloud.processes import Programs

__all__ = ["SshTunnel", "forwarding", "free_port", "private_folder", "wait_until_answered"]

_PROBE_SECONDS: Final = 5.0
_CONTROL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class SshTunnel:
    """A tunnel, open or not.

    Attributes:
        vm_name: The VM's name.
        zone: The VM's zone.
        log_directory: The VM's log directory.
        port: The local port.
    """

    vm_name: str
    zone: str
    log_directory: str
    port: int

    @property
    def url(self) -> str:
        """The URL to open in a browser."""
        return f"http://localhost:{self.port}"

    def options(self, folder: Path, host_port: int) -> list[str]:
        """Return the options of an ssh process that moves to the background after its login.

        Args:
            folder: The folder of `private_folder`.
            host_port: The port of XProf on the VM.
        """
        return ["-f", "-M", "-S", str(self._socket(folder)), *forwarding(self.port, host_port)]

    def note(self, folder: Path) -> None:
        """Save the description of the tunnel."""
        with contextlib.suppress(FileNotFoundError):
            self._note(folder).unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self._note(folder), flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def all_noted(cls, folder: Path) -> list[SshTunnel]:
        """Return the tunnels that were opened and not closed."""
        found = []
        for note in sorted(folder.glob("*.json")):
            try:
                found.append(cls(**json.loads(note.read_text(encoding="utf-8"))))
            except (OSError, ValueError, TypeError):
                continue
        return found

    def is_open(self, folder: Path, programs: Programs) -> bool:
        """Return whether its ssh process runs."""
        return self._socket(folder).exists() and self._control("check", folder, programs)

    def close(self, folder: Path, programs: Programs) -> bool:
        """Close the tunnel, and return whether it was open."""
        was_open = self._socket(folder).exists() and self._control("exit", folder, programs)
        for path in (self._note(folder), self._socket(folder)):
            with contextlib.suppress(OSError):
                path.unlink()
        return was_open

    def _control(self, what: str, folder: Path, programs: Programs) -> bool:
        argv = ["ssh", "-S", str(self._socket(folder)), "-O", what, "--", self.vm_name]
        return programs.run(argv, timeout_seconds=_CONTROL_SECONDS).exit_code == 0

    def _note(self, folder: Path) -> Path:
        return folder / f"{self._key}.json"

    def _socket(self, folder: Path) -> Path:
        return folder / self._key

    @property
    def _key(self) -> str:
        """A short file name: a socket's path may have 104 characters, and ssh appends a suffix."""
        return hashlib.sha256(f"{self.zone}/{self.vm_name}".encode()).hexdigest()[:12]


def forwarding(port: int, host_port: int) -> list[str]:
    """Return the options of an ssh process that only forwards a local port to one of the VM.

    Args:
        port: The port on the local loopback interface.
        host_port: The port on the VM's loopback interface.
    """
    return [
        *("-N", "-L", f"localhost:{port}:127.0.0.1:{host_port}"),
        *("-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"),
    ]


def free_port(wanted: int) -> int:
    """Return the port if it is free, otherwise another free one."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            taken = 0
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
                if family == socket.AF_INET6 and not _has_ipv6():
                    continue
                listener = stack.enter_context(socket.socket(family))
                if os.name != "nt":
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port or taken))
                taken = listener.getsockname()[1]
            return taken
    raise CommandError("no port is free on this machine; close some programs")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


def wait_until_answered(url: str, timeout_seconds: float, is_alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until a server answers at a URL with success.

    Args:
        url: The local URL.
        timeout_seconds: The timeout.
        is_alive: Return False if the tunnel has ended.

    Raises:
        TimedOutError: No server answered in time.
        CommandError: The tunnel ended.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with opener.open(url, timeout=_PROBE_SECONDS):
                return
        except (OSError, urllib.error.HTTPError, ValueError) as error:
            problem = error
        if not is_alive():
            raise CommandError("the tunnel broke before XProf answered")
        if time.monotonic() >= deadline:
            raise TimedOutError(f"XProf did not answer through the tunnel within {timeout_seconds:g} s ({problem})")
        time.sleep(_POLL_SECONDS)


def private_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a folder for control sockets that only this user can access; create it if it is missing.

    Args:
        environ: The environment variables; XDG_RUNTIME_DIR is the standard parent.

    Raises:
        CommandError: Another user owns the folder, or can access it.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"xprofiler-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise CommandError(
            f"cannot make {folder} ({error.strerror}): set XDG_RUNTIME_DIR to a folder of yours"
        ) from error
    is_ours = stat.S_ISDIR(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == user)
    if not is_ours or (os.name != "nt" and found.st_mode & 0o077):
        raise CommandError(f"{folder} is not a folder of yours alone: remove it, or set XDG_RUNTIME_DIR to another")
    return folder
