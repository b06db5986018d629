"""The address of the hub, for processes without `jax.distributed`: in a file of a shared folder, or of a bucket.

The file has the hub's address, port and token, so it is for this user only. Its name has an id of the launch, as two
jobs may have the same name. A file of an earlier attempt does no harm: its hub is gone, or has another process with the
same index, and companions that are refused read the file again.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.files import in_bucket, open_regular, write_state
from ml_diagnostics_common.texts import readable_id
from ml_diagnostics_common.worker import start

__all__ = [
    "FOLDER",
    "LAUNCH",
    "TOKEN",
    "Address",
    "LoopbackError",
    "Meeting",
    "default_address",
    "launch_id",
    "launcher_token",
    "local_address",
]

FOLDER: Final = "ML_DIAGNOSTICS_FAST_FAIL_FOLDER"
"""Environment variable: a folder that all hosts share, or one of a bucket."""
TOKEN: Final = "ML_DIAGNOSTICS_FAST_FAIL_TOKEN"
"""Environment variable: the token, if the launcher gives all processes of an attempt the same."""
LAUNCH: Final = "ML_DIAGNOSTICS_FAST_FAIL_LAUNCH"
"""Environment variable: a text that all processes of a launch share, and no other launch has."""

_LAUNCHERS: Final = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE")
"""Variables of launchers with such a text: Slurm, torchrun, and Open MPI."""
_STEP: Final = "SLURM_STEP_ID"
"""An allocation of Slurm may run several jobs at once, each as a step."""
_LEAST_TOKEN_CHARACTERS: Final = 32
_ID_DIGITS: Final = 16
_MOST_BYTES: Final = 4096
_BUCKET_SECONDS: Final = 20.0


class LoopbackError(OSError):
    """No other machine reaches the address that this machine's name has here."""


class Address(NamedTuple):
    """The address of the hub.

    Attributes:
        address: The address, a number.
        port: The port.
        token: The token, as hexadecimal digits; None if the launcher gave it to all.
    """

    address: str
    port: int
    token: str | None

    def key(self) -> bytes | None:
        """Return the token as a key; None without one."""
        try:
            return launcher_token() if self.token is None else bytes.fromhex(self.token)
        except ValueError:
            return None

    @classmethod
    def from_json(cls, values: object) -> Address | None:
        """Return the address in decoded JSON; None if there is none."""
        if not isinstance(values, Mapping):
            return None
        address, port, token = (values.get(name) for name in cls._fields)
        is_valid = isinstance(address, str) and type(port) is int and 0 < port < 2**16
        return cls(address, port, token) if is_valid and (token is None or isinstance(token, str)) else None  # type: ignore[arg-type]


def launcher_token(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the token that the launcher has set; None if it has set none.

    Raises:
        ValueError: It is too short to be one.
    """
    token = environ.get(TOKEN, "")
    if not token:
        return None
    if len(token) < _LEAST_TOKEN_CHARACTERS:
        raise ValueError(f"{TOKEN} has {len(token)} characters; give it {_LEAST_TOKEN_CHARACTERS} or more, at random")
    return token.encode("utf-8", "surrogateescape")


def launch_id(environ: Mapping[str, str] = os.environ) -> str:
    """Return an id of the launch that all of its processes share, and no other job has; empty if there is none."""
    import hashlib

    own = [text for text in (environ.get(LAUNCH), environ.get(TOKEN)) if text][:1]
    # torchrun calls each launch without a name "none".
    launchers = [environ[name] for name in _LAUNCHERS if environ.get(name, "none") not in ("", "none")]
    texts = own or [*launchers, *([environ.get(_STEP, "")] if launchers else [])]
    text = "\0".join(texts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_ID_DIGITS] if texts else ""


def local_address(coordinator: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of this machine's interface by which a coordinator is reached. May wait for a name server.

    Debian maps the name of a machine to 127.0.1.1, at which no other machine reaches it: then it is the interface of
    the default route.

    Args:
        coordinator: HOST:PORT; an address of IPv6 is in brackets.
        environ: The environment variables, which show if all processes are on this host.

    Raises:
        LoopbackError: Its name is mapped to a loopback address, and this machine has no other route.
        OSError: It cannot be reached, or its name cannot be resolved.
        ValueError: It has another form.
    """
    import socket

    name, _, port = coordinator.rpartition(":")
    host = name.strip("[]")
    family, _, _, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    address = _interface(family, target)
    if not _is_loopback(address) or _is_loopback(host):
        return address
    cause = f"{host or 'the coordinator'} is mapped to a loopback address, {target[0]}, as by a line of /etc/hosts"
    return default_address(cause, environ)


def default_address(cause: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of the interface of the default route; a loopback address if all processes are on this host.

    Args:
        cause: Why it is not the one by which the coordinator is reached.
        environ: The environment variables.

    Raises:
        LoopbackError: There is no such route.
    """
    import socket

    if _is_one_host(environ):
        return "127.0.0.1"
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # For documentation.
        with contextlib.suppress(OSError):
            address = _interface(family, (elsewhere, 1))
            if not _is_loopback(address):
                return address
    raise LoopbackError(
        f"{cause}, and there is no default route: no other machine reaches this one; give the coordinator's address as "
        "a number"
    )


def _interface(family: int, target: tuple[object, ...]) -> str:
    """Return the address of the interface by which a target is reached."""
    import socket

    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # To connect it sends nothing, but chooses the interface.
        probe.connect(target)
        address: str = probe.getsockname()[0]
    return address


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith(("127.", "::ffff:127."))


def _is_one_host(environ: Mapping[str, str]) -> bool:
    """Return True if the launcher has started all processes on one host."""
    pairs = (("LOCAL_WORLD_SIZE", "WORLD_SIZE"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"))
    is_same = any(environ.get(local) and environ.get(local) == environ.get(whole) for local, whole in pairs)
    return is_same or environ.get("SLURM_STEP_NUM_NODES") == "1"


class Meeting:
    """The file of one attempt of a job.

    Args:
        folder: A folder that all hosts share, or one of a bucket.
        job: The job's name; may be empty.
        launch: The id of the launch.
        attempt: The number of the attempt; empty if it is unknown.
    """

    def __init__(self, folder: str, job: str, launch: str, attempt: str) -> None:
        name = readable_id(job or "job", launch, attempt or "0", is_exact=True)
        self._path = f"{folder.rstrip('/')}/fast_fail/{name}.json"
        self._is_busy = False

    def publish(self, address: Address, on_failure: Callable[[str], object]) -> None:
        """Write the file, in a thread.

        Args:
            address: The address of the hub.
            on_failure: Called in that thread with a text if it cannot be written.
        """

        def write() -> None:
            try:
                if in_bucket(self._path):
                    self._storage().write(self._path, json.dumps(address._asdict()).encode())
                else:
                    write_state(Path(self._path), address._asdict())
            except Exception as error:
                on_failure(f"{self._path} cannot be written ({type(error).__name__}: {error})")

        start(write, "fast-fail-meeting")

    def read(self, take: Callable[[Address], object]) -> None:
        """Read the file, in a thread; do nothing while another one does so.

        Args:
            take: Called in that thread with the address, if there is one.
        """
        if self._is_busy:
            return
        self._is_busy = True

        def read() -> None:
            try:
                address = Address.from_json(json.loads(self._content()))
                if address is not None:
                    take(address)
            except (ValueError, RecursionError, OSError):
                pass  # It does not exist yet, or not whole.
            finally:
                self._is_busy = False

        if start(read, "fast-fail-meeting") is None:
            self._is_busy = False

    def _content(self) -> bytes:
        """Return the content of the file, if no other user can have written or read it."""
        if in_bucket(self._path):
            return bytes(self._storage().read(self._path)[:_MOST_BYTES])
        descriptor = open_regular(self._path, follow_links=False)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                return b""
            return os.read(descriptor, _MOST_BYTES)
        finally:
            os.close(descriptor)

    def _storage(self) -> Any:
        from ml_diagnostics_common.storage import storage_for

        return storage_for(self._path, deadline_seconds=_BUCKET_SECONDS)
