"""The object MLDiagnosticsConnection, as the API server returns it, and its schema. No clock, no network."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google_cloud_mldiagnostics._kubernetes.names import (
    CLAIMED_BY,
    CONNECTION_GROUP,
    CONNECTION_KIND,
    CONNECTION_VERSION,
    CONNECTIONS,
    TTL,
)

__all__ = ["Capture", "CaptureStatus", "Connection", "Phase", "custom_resource_definition", "read_connection"]

MOST_PODS: Final = 256
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_POD: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names"""
_PROFILER: Final = "google_cloud_mldiagnostics"
_TEXT: Final[dict[str, Any]] = {"type": "string"}
_TIME: Final[dict[str, Any]] = {"type": "string", "format": "date-time"}


class Phase(enum.Enum):
    """The phase of a connection."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        """True if it never changes again."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class CaptureStatus(enum.Enum):
    """The result of a capture."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    """The pods reported success, and the files cannot be read from here."""


class Capture(NamedTuple):
    """The capture that an object asks for.

    Attributes:
        pods: The names of the pods, in order, each once.
        namespace: Their namespace.
        port: The port of the profiler server of each.
        duration_seconds: How long to profile.
        location: The folder for profiles.
    """

    pods: tuple[str, ...]
    namespace: str
    port: int
    duration_seconds: int
    location: str

    @property
    def folder(self) -> str:
        """The folder of sessions, where XProf and TensorBoard search for them."""
        return f"{self.location}/plugins/profile"


class Connection(NamedTuple):
    """One object.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        uid: Its id.
        resource_version: The version that was read; a change of another one is refused.
        capture: The capture that it asks for; None if its spec is not valid.
        problem: Why the spec is not valid; empty if it is.
        phase: Its phase; None before the first.
        message: The message of its status; empty before the first.
        claimed_by: The operator that claimed it; empty before that.
        started: When the capture was claimed, as in the status; empty before that.
        completed: When it ended, as in the status; empty before that.
        ttl_seconds: How long the object is kept after its end; None for the operator's default, 0 for ever.
    """

    name: str
    namespace: str
    uid: str
    resource_version: str
    capture: Capture | None
    problem: str
    phase: Phase | None
    message: str
    claimed_by: str
    started: str
    completed: str
    ttl_seconds: int | None

    @property
    def session(self) -> str:
        """The name of its profile session: the same in every attempt, so that there is one session at most."""
        return f"{self.name}-{self.uid[:8]}"


def read_connection(document: Mapping[str, Any]) -> Connection:
    """Return the connection of an object; one whose spec is not valid has a problem.

    Args:
        document: The object, as the API server returns it.
    """
    metadata, status = _mapping(document, "metadata"), _mapping(document, "status")
    annotations = _mapping(metadata, "annotations")
    capture, problem = _capture(_mapping(_mapping(document, "spec"), "triggerCapture"))
    ttl = str(annotations.get(TTL, ""))
    phases = {phase.value: phase for phase in Phase}
    return Connection(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        capture=capture,
        problem=problem,
        phase=phases.get(str(status.get("phase", ""))),
        message=str(status.get("message", "")),
        claimed_by=str(annotations.get(CLAIMED_BY, "")),
        started=str(status.get("startTime", "")),
        completed=str(status.get("completionTime", "")),
        ttl_seconds=int(ttl) if ttl.isascii() and ttl.isdigit() and len(ttl) < 12 else None,
    )


def _capture(spec: Mapping[str, Any]) -> tuple[Capture | None, str]:
    """Return the capture of a spec, or None and what is wrong with it; the schema has checked most of it."""
    names = spec.get("podName")
    found = (name.strip() for name in names.split(",")) if isinstance(names, str) else ()
    pods = tuple(dict.fromkeys(name for name in found if name))
    port, seconds = spec.get("capturePort"), spec.get("durationSeconds")
    namespace, location = spec.get("podNamespace"), spec.get("storageLocation")
    if not pods:
        return None, "expected podName to have names of pods, separated by commas"
    if len(pods) > MOST_PODS:
        return None, f"expected at most {MOST_PODS} pods, got {len(pods)}: create several objects"
    wrong = next((name for name in pods if not _POD.fullmatch(name)), None)
    if wrong is not None:
        return None, f"expected podName to have names of pods, separated by commas, got {wrong!r:.300}"
    if not _is_int(port, 1, 65535):
        return None, f"expected capturePort from 1 to 65535, got {port!r:.50}"
    if not _is_int(seconds, 1, 3600):
        return None, f"expected durationSeconds from 1 to 3600, got {seconds!r:.50}"
    if not _is_text(namespace) or not _is_text(location):
        return None, "expected podNamespace and storageLocation, got an object without one of both"
    if spec.get("profiler") != _PROFILER:
        return None, f"expected the profiler {_PROFILER}, got {spec.get('profiler')!r:.50}"
    return Capture(pods, str(namespace), int(port or 0), int(seconds or 0), str(location).rstrip("/")), ""


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


# --- The schema ---------------------------------------------------------------------------------------


def custom_resource_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition, which makes the API server refuse most of what is not valid."""
    singular = CONNECTION_KIND.lower()
    names = {
        "kind": CONNECTION_KIND,
        "listKind": f"{CONNECTION_KIND}List",
        "plural": CONNECTIONS,
        "singular": singular,
        "shortNames": ["mldc"],
    }
    columns = [
        {"name": "Status", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.message"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    version = {
        "name": CONNECTION_VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _object({"spec": _spec_schema(), "status": _status_schema()}, required=["spec"])},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{CONNECTIONS}.{CONNECTION_GROUP}"},
        "spec": {"group": CONNECTION_GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _spec_schema() -> dict[str, Any]:
    capture = {
        "capturePort": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
        "durationSeconds": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 3600},
        "podName": {**_TEXT, "minLength": 1, "maxLength": 65536},
        "podNamespace": {**_TEXT, "minLength": 1, "maxLength": 63},
        "profiler": {**_TEXT, "enum": [_PROFILER]},
        "storageLocation": {**_TEXT, "minLength": 1, "maxLength": 2048},
    }
    unchanged = {
        "rule": "self == oldSelf",
        "message": "spec cannot be changed: create another object for another capture",
    }
    schema = _object({"triggerCapture": _object(capture, required=sorted(capture))}, required=["triggerCapture"])
    return {**schema, "x-kubernetes-validations": [unchanged]}


def _status_schema() -> dict[str, Any]:
    result = {
        "status": {**_TEXT, "enum": [status.value for status in CaptureStatus]},
        "errorMessage": _TEXT,
        "outputLocation": _TEXT,
    }
    condition = {
        "type": _TEXT,
        "status": {**_TEXT, "enum": ["True", "False", "Unknown"]},
        "reason": _TEXT,
        "message": _TEXT,
        "lastTransitionTime": _TIME,
    }
    conditions = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": _object(condition, required=["type", "status", "reason", "lastTransitionTime"]),
    }
    return _object(
        {
            "phase": {**_TEXT, "enum": [phase.value for phase in Phase]},
            "message": _TEXT,
            "observedGeneration": {"type": "integer", "format": "int64"},
            "startTime": _TIME,
            "completionTime": _TIME,
            "captureResult": _object(result),
            "conditions": conditions,
        }
    )


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema
