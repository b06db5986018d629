"""Metadata of a Google VM or pod: requested once in a process, and waited for one second in all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ml_diagnostics_common.environment import on_google_hardware
from ml_diagnostics_common.process_hooks import import_undisturbed
from ml_diagnostics_common.worker import start

__all__ = ["InstanceMetadata", "instance_metadata", "metadata_host", "metadata_value"]

_DEFAULT_HOST = "169.254.169.254"  # The address, not the name: a DNS server that never answers does not matter.
_SOCKET_TIMEOUT_SECONDS = 3.0
_LONGEST_FACT = 4096
_LONGEST_VALUE_BYTES = 262_144  # Compute Engine allows a value of custom metadata no more.
_HTTP = ("http.client", "ml_diagnostics_common._timed_response", "encodings.idna")  # The last one is for sockets.
_RETRY_DELAYS_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(frozen=True)
class InstanceMetadata:
    """The facts of the metadata server about this machine.

    Attributes:
        project: The project's id.
        zone: Such as 'us-central2-b', or empty.
        principal: The e-mail address of the default service account, or empty where there is none.
        cluster_name: The GKE cluster's name, or empty.
    """

    project: str
    zone: str = ""
    principal: str = ""
    cluster_name: str = ""


def metadata_host(environ: Mapping[str, str] = os.environ) -> str:
    """Return the metadata server's 'host' or 'host:port', by the variables that google.auth reads too."""
    return environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_ROOT") or _DEFAULT_HOST


def instance_metadata(environ: Mapping[str, str] = os.environ, *, wait_seconds: float = 1.0) -> InstanceMetadata | None:
    """Request this machine's project, zone, account and cluster from the metadata server.

    The first call starts the one probe of this process, and all calls together wait `wait_seconds` for it,
    also where packets to the server vanish. Later calls return an answer that arrives later.

    Args:
        environ: The environment variables. `GCE_METADATA_HOST` names the server; `NO_GCE_CHECK=true` forbids
            to ask.
        wait_seconds: How long to wait for the probe, from its start on.

    Returns:
        The metadata that is known by then, or None. Never raises.
    """
    if environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    # The pid is in the key, and there is no lock, because a forked child has no thread of its parent.
    key = (os.getpid(), metadata_host(environ))
    probe = _probes_of_this_process.get(key)
    if probe is None:
        patient = bool(environ.get("KUBERNETES_SERVICE_HOST")) or on_google_hardware()
        new = _Probe(key[1], patient)
        probe = _probes_of_this_process.setdefault(key, new)
        if probe is new:
            probe.start()
    return probe.wait(wait_seconds)


class _Probe:
    """One probe of a metadata server, in a thread of its own that no caller has to wait for.

    A patient one retries for a minute, because the server of a new pod may need seconds to start.
    """

    def __init__(self, host: str, patient: bool) -> None:
        self._host = host
        self._delays = iter(_RETRY_DELAYS_SECONDS if patient else ())
        self._found: InstanceMetadata | None = None
        self._first_verdict = threading.Event()
        self._start = time.monotonic()

    def start(self) -> None:
        if start(self._run, "ml-diagnostics-metadata") is None:
            self._first_verdict.set()

    def wait(self, seconds: float) -> InstanceMetadata | None:
        self._first_verdict.wait(max(0.0, self._start + seconds - time.monotonic()))
        return self._found

    def _run(self) -> None:
        while True:
            for found in _ask(self._host):
                self._found = found
            self._first_verdict.set()
            delay = next(self._delays, None)
            if self._found or delay is None:
                return
            time.sleep(delay)


_probes_of_this_process: dict[tuple[int, str], _Probe] = {}


def metadata_value(path: str, *, timeout_seconds: float, environ: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """Read one value of the metadata server. Never raises.

    Args:
        path: Below `/computeMetadata/v1/`, percent-encoded.
        timeout_seconds: How long the whole response may take.
        environ: The environment variables.

    Returns:
        The HTTP status and the value; the status is 0 where there was no answer, or it was not a metadata server's.
    """
    import_undisturbed(*_HTTP)
    import http.client

    try:
        with contextlib.closing(_connect(metadata_host(environ), timeout_seconds)) as connection:
            return _read(connection, path)
    except (OSError, ValueError, http.client.HTTPException):
        return 0, ""


def _ask(host: str) -> Iterator[InstanceMetadata]:
    """Yield the known facts, more of them each time; end if the server does not answer."""
    import_undisturbed(*_HTTP)
    import http.client

    try:
        with contextlib.closing(_connect(host, _SOCKET_TIMEOUT_SECONDS)) as connection:
            project = _found(connection, "project/project-id")
            if not project:
                return
            found = InstanceMetadata(project)
            yield found
            found = replace(found, principal=_found(connection, "instance/service-accounts/default/email"))
            yield found
            found = replace(found, zone=_found(connection, "instance/zone").rpartition("/")[2])
            yield found
            yield replace(found, cluster_name=_found(connection, "instance/attributes/cluster-name"))
    except (OSError, ValueError, http.client.HTTPException):
        return


def _connect(host: str, timeout_seconds: float) -> Any:
    from ml_diagnostics_common._timed_response import TimedConnection  # Only here: http.client takes 10 ms.

    return TimedConnection(host, timeout=timeout_seconds)


def _found(connection: Any, path: str) -> str:
    status, text = _read(connection, path)
    return text[:_LONGEST_FACT] if status == 200 else ""


def _read(connection: Any, path: str) -> tuple[int, str]:
    connection.request("GET", f"/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})
    response = connection.getresponse()
    text = response.read(_LONGEST_VALUE_BYTES).decode("utf-8", "replace").strip()
    is_google = response.getheader("Metadata-Flavor") == "Google"  # Else a captive portal answered.
    return (response.status if is_google else 0), text
