"""Entries to the journal and, where there is a cloud, on to Cloud Logging. Nothing is loaded before the first entry."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloud_tpu_diagnostics._console.marks import times_of_lines
from cloud_tpu_diagnostics._dumps.parser import Dump
from cloud_tpu_diagnostics.entries import COMPILES, CONSOLE, DUMP, LOG_ID, entry

if TYPE_CHECKING:
    from pathlib import Path

    from ml_diagnostics_common.journal import Journal
    from ml_diagnostics_common.mirror.writer import Mirror
    from ml_diagnostics_common.shipper import Shipper

__all__ = [
    "CONTAINER_NAME",
    "EntryLog",
    "compiles_entry",
    "console_entry",
    "dump_entries",
    "monitored_resource",
    "namespace_of_pod",
]

CONTAINER_NAME: Final = "ml-diagnostics-stacktrace"
"""The name that replaces that of the job's container: dashboards select containers with `stacktrace` in their names,
which are otherwise those that tail the trace files."""

_MOST_TEXT_BYTES = 180_000
"""The limit of one entry's text: Cloud Logging takes 256 KiB, with all labels and names."""
_MOST_PAYLOAD_BYTES = 2**20
_REQUEST_SECONDS = 10.0
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_METADATA_SECONDS = 1.0
_TPU_ENVIRONMENT = "attributes/tpu-env"
"""Metadata of a TPU VM: lines such as `NODE_ID: 'my-tpu'` and `WORKER_ID: '0'`."""


class EntryLog:
    """The log of one job.

    Args:
        labels: The labels of every entry, which identify the job.
        is_shipped: True to send entries to Cloud Logging.
        prepare: Called before anything is loaded.
    """

    def __init__(
        self, labels: Mapping[str, str], *, is_shipped: bool, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._labels = dict(labels)
        self._is_shipped = is_shipped
        self._prepare = prepare
        self._resource: dict[str, Any] | None = None
        self._journal: Journal | None = None
        self._shipper: Shipper | None = None
        self._mirror: Mirror | None = None

    def write(self, payload: Mapping[str, Any], *, severity: str | None = None) -> None:
        """Write an entry, without text that resembles a secret.

        Args:
            payload: One of `entries.entry`.
            severity: A severity of Cloud Logging; None is INFO.
        """
        from ml_diagnostics_common.redaction import redact

        journal = self._journal or self._open()
        journal.append(redact(payload, max_bytes=_MOST_PAYLOAD_BYTES), severity=severity)

    def local(self) -> EntryLog:
        """Return a log with the same labels, the entries of which stay on this machine."""
        return EntryLog(self._labels, is_shipped=False, prepare=self._prepare)

    @property
    def is_open(self) -> bool:
        """True if an entry was written since it was created, or closed."""
        return self._journal is not None

    @property
    def job(self) -> str:
        """The job's name; empty if it is unknown."""
        return self._labels.get("job", "")

    def learn(self, labels: Mapping[str, str]) -> None:
        """Update labels that the job has learned since, such as its index among all processes."""
        if any(self._labels.get(name) != value for name, value in labels.items()):
            self._labels.update(labels)
            self._journal = None  # The next entry opens another, with another header.

    def close(self, timeout_seconds: float) -> None:
        """Ship and mirror the remaining entries within this time; the next companion does the rest.

        An entry opens it again.
        """
        deadline = time.monotonic() + timeout_seconds
        journal, self._journal = self._journal, None
        shipper, self._shipper = self._shipper, None
        mirror, self._mirror = self._mirror, None
        if journal is not None:
            journal.close(min(1.0, timeout_seconds))
        if shipper is not None:
            shipper.close(max(0.0, deadline - time.monotonic()))
        if mirror is not None:
            mirror.flush(max(0.0, deadline - time.monotonic()))

    def _open(self) -> Journal:
        from ml_diagnostics_common.environment import (
            Backend,
            configured_backend,
            configured_mirror,
            diagnostics_directory,
        )
        from ml_diagnostics_common.exceptions import ConfigurationError
        from ml_diagnostics_common.journal import Journal

        self._prepare()
        root = diagnostics_directory()
        try:
            to_cloud = self._is_shipped and configured_backend() is not Backend.LOCAL
        except ConfigurationError:
            to_cloud = False  # The recorders in the job report it.
        if self._resource is None:
            self._resource = monitored_resource() if to_cloud else {}
        journal = Journal(
            LOG_ID,
            root=root,
            labels=self._labels,
            resource=self._resource,
            shippable=self._is_shipped,
            mirrored=self._is_shipped,
            queued=False,
            about_pid=int(self._labels["pid"]),
        )
        if to_cloud and self._shipper is None:
            self._shipper = _started_shipper(root)
        if self._is_shipped and configured_mirror():
            self._mirror = _started_mirror(root)
        self._journal = journal
        return journal


def _started_mirror(root: Path) -> Mirror | None:
    from ml_diagnostics_common.exceptions import ConfigurationError
    from ml_diagnostics_common.mirror.writer import start_mirror

    try:
        return start_mirror(LOG_ID, root, by="companion")
    except ConfigurationError:
        return None  # The recorders in the job report it.


def _started_shipper(root: Path) -> Shipper:
    from ml_diagnostics_common.shipper import Shipper

    shipper = Shipper(LOG_ID, root=root, request_seconds=_REQUEST_SECONDS)
    shipper.start()
    return shipper


def dump_entries(dump: Dump, number: int, **fields: Any) -> list[tuple[dict[str, Any], str | None]]:
    """Return the entries of a dump and their severities; more than one if it is too long for one.

    Args:
        dump: The dump that faulthandler wrote.
        number: The dump's number in its process, in all its parts.
        fields: Further fields of the entries.
    """
    severity = "ERROR" if dump.trigger.is_last else None
    parts = _parts(dump.text)
    return [
        (
            entry(
                DUMP,
                part,
                trigger=dump.trigger.value,
                headline=dump.headline or None,
                threads=len(dump.threads),
                is_cut=dump.is_cut or None,
                dump=number,
                part=index if len(parts) > 1 else None,
                parts=len(parts) if len(parts) > 1 else None,
                **fields,
            ),
            severity,
        )
        for index, part in enumerate(parts, 1)
    ]


def compiles_entry(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the compilations in a message of the job: `Compilations.message`."""
    count, seconds, functions = message["count"], message["seconds"], message["functions"]
    names = ", ".join(f"{each['name']} ({each['count']})" for each in functions)
    programs = "1 program" if count == 1 else f"{count} programs"
    text = f"JAX compiled {programs} in {seconds:.1f} s: {names}"
    return entry(COMPILES, text, count=count, seconds=seconds, functions=functions, time_ns=message["time_ns"])


def console_entry(
    stream: str,
    data: bytes,
    occasion: str,
    *,
    start: int,
    marks: Iterable[tuple[int, int]],
    dropped_bytes: int = 0,
    path: str = "",
    is_of_python: bool = False,
) -> dict[str, Any]:
    """Return the entry of the last lines of a stream.

    Args:
        stream: `out`, `err`, or `out+err` if both are the same file.
        data: The last bytes.
        occasion: `hang` or `end`.
        start: The position of these bytes in the stream.
        marks: When the bytes of the stream were printed: `TimeMarks`.
        dropped_bytes: The number of bytes that were dropped since nothing read them.
        path: The file that the job prints to; empty if it is not one.
        is_of_python: True if lines of native code, and of other processes, are missing.
    """
    text = data.decode("utf-8", "replace")
    return entry(
        CONSOLE,
        text,
        stream=stream,
        occasion=occasion,
        times=times_of_lines(data, start, marks),
        path=path or None,
        dropped_bytes=dropped_bytes or None,
        is_of_python=is_of_python or None,
    )


def _parts(text: str) -> list[str]:
    """Split a text at the ends of lines."""
    parts: list[str] = []
    lines: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        line_size = len(line.encode("utf-8", "replace"))
        if lines and size + line_size > _MOST_TEXT_BYTES:
            parts.append("".join(lines))
            size, lines = 0, []
        size += line_size
        lines.append(line)
    return [*parts, "".join(lines)]


def monitored_resource(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return Cloud Logging's resource of this process; empty outside Google's machines. May wait two seconds.

    The documented queries, metrics and dashboards select entries by it: `tpu_worker` on TPU VMs, `k8s_container` in
    pods (https://cloud.google.com/logging/docs/api/v2/resource-list).

    Args:
        environ: The environment variables.
    """
    from ml_diagnostics_common.credentials.instance_metadata import instance_metadata
    from ml_diagnostics_common.environment import Orchestrator, on_google_hardware, orchestrator

    where = orchestrator(environ)
    if where is not Orchestrator.GKE and not environ.get("GCE_METADATA_HOST") and not on_google_hardware():
        return {}
    metadata = instance_metadata(environ)
    if metadata is None:
        return {}
    if where is Orchestrator.GKE:
        labels = {
            "project_id": metadata.project,
            "location": _value("attributes/cluster-location", environ) or metadata.zone,
            "cluster_name": metadata.cluster_name,
            "namespace_name": namespace_of_pod(environ),
            "pod_name": environ.get("POD_NAME") or os.uname().nodename,
            "container_name": CONTAINER_NAME,
        }
        return {"type": "k8s_container", "labels": labels}
    node, worker = _tpu_node(environ, lambda path: _value(path, environ))
    if not node:
        return {}
    labels = {"project_id": metadata.project, "zone": metadata.zone, "node_id": node, "worker_id": worker}
    return {"type": "tpu_worker", "labels": labels}


def _tpu_node(environ: Mapping[str, str], value: Callable[[str], str]) -> tuple[str, str]:
    """Return the names of the TPU and of this worker of it; empty on a machine without a TPU."""
    variables = dict(re.findall(r"^(\w+): *'?([^'\n]*)'?$", value(_TPU_ENVIRONMENT), re.MULTILINE))
    node = variables.get("NODE_ID") or environ.get("TPU_NAME", "")
    worker = variables.get("WORKER_ID") or value("attributes/agent-worker-number") or environ.get("TPU_WORKER_ID", "")
    return node, worker or "0"


def namespace_of_pod(environ: Mapping[str, str]) -> str:
    """Return the Kubernetes namespace of this pod; `default` if it is unknown."""
    if namespace := environ.get("POD_NAMESPACE"):
        return namespace
    try:
        with open(_NAMESPACE_FILE, encoding="utf-8") as file:  # noqa: PTH123
            return file.read().strip()
    except (OSError, ValueError):
        return "default"


def _value(path: str, environ: Mapping[str, str]) -> str:
    """Return a metadata value of this machine; empty if the metadata server has none."""
    from ml_diagnostics_common.credentials.instance_metadata import metadata_value

    status, text = metadata_value(f"instance/{path}", timeout_seconds=_METADATA_SECONDS, environ=environ)
    return text if status == 200 else ""
