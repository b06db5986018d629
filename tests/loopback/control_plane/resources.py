"""The messages of the API as JSON: fields and their types. Like Google's APIs, reject all other fields.

Fields: https://github.com/googleapis/googleapis/blob/master/google/cloud/hypercomputecluster/v1alpha/machine_learning_runs.proto
and, for workloads and sessions, the input and output of `gcloud alpha mldiagnostics`.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

Resource = dict[str, Any]


@dataclass(frozen=True)
class _Scalar:
    """A scalar value; `name` is the name of its type in protobuf."""

    name: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class _MapOf:
    """A map from strings to values of one type."""

    value: _Scalar


def _is_timestamp(value: Any) -> bool:
    try:
        parse_time(value)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


_TEXT = _Scalar("TYPE_STRING", lambda value: isinstance(value, str))
_TRUTH = _Scalar("TYPE_BOOL", lambda value: isinstance(value, bool))
_NUMBER = _Scalar(
    "TYPE_FLOAT", lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
)
_TIME = _Scalar("google.protobuf.Timestamp", _is_timestamp)
_DURATION = _Scalar(
    "google.protobuf.Duration",
    lambda value: isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d{1,9})?s", value) is not None,
)


def _one_of(*names: str) -> _Scalar:
    return _Scalar("TYPE_ENUM", lambda value: value in names)


_TARGET = {"displayName": _TEXT, "instanceId": _TEXT, "hostname": _TEXT, "zone": _TEXT, "state": _TEXT}
_WORKLOAD = {
    "gke": {
        "id": _TEXT,
        "kind": _TEXT,
        "cluster": _TEXT,
        "namespace": _TEXT,
        "parentWorkload": _TEXT,
        "labels": _MapOf(_TEXT),
        "createTime": _TIME,
    },
    "slurm": {"jobId": _TEXT, "cluster": _TEXT, "displayName": _TEXT, "submitTime": _TIME},
    "custom": {"id": _TEXT, "displayName": _TEXT, "createTime": _TIME},
    "targets": [_TARGET],
}

RUN: Mapping[str, Any] = {
    "name": _TEXT,
    "displayName": _TEXT,
    "runSet": _TEXT,
    "etag": _TEXT,
    "configs": {
        "userConfigs": _MapOf(_TEXT),
        "softwareConfigs": _MapOf(_TEXT),
        "hardwareConfigs": _MapOf(_TEXT),
    },
    "tools": [{"xprof": {"sessionId": _TEXT}}],
    "metrics": {
        "avgStep": _DURATION,
        "avgMfu": _NUMBER,
        "avgThroughput": _NUMBER,
        "avgLatency": _DURATION,
        "avgHbmUtilization": _NUMBER,
        "avgTpuTensorcoreUtilization": _NUMBER,
    },
    "labels": _MapOf(_TEXT),
    "state": _one_of("STATE_UNSPECIFIED", "STATE_ACTIVE", "STATE_COMPLETED", "STATE_FAILED"),
    "createTime": _TIME,
    "updateTime": _TIME,
    "endTime": _TIME,
    "artifacts": {"gcsPath": _TEXT},
    "orchestrator": _one_of("ORCHESTRATOR_UNSPECIFIED", "GCE", "GKE", "SLURM", "CUSTOM"),
    "workloadDetails": _WORKLOAD,
    "runPhase": _one_of("RUN_PHASE_UNSPECIFIED", "ACTIVE", "COMPLETED", "FAILED"),
    "errorDetails": _TEXT,
}
"""A MachineLearningRun."""

SESSION: Mapping[str, Any] = {
    "name": _TEXT,
    "etag": _TEXT,
    "createTime": _TIME,
    "updateTime": _TIME,
    "profilerTargets": [_TEXT],
    "targetSessions": {
        "*": {"startTime": _TIME, "endTime": _TIME, "sessionPhase": _one_of("ACTIVE", "SUCCEEDED", "FAILED")}
    },
    "storageFolderUri": _TEXT,
    "dashboardUri": _TEXT,
    "duration": _DURATION,
    "kind": _one_of("KIND_UNSPECIFIED", "KIND_PROGRAMMATIC", "KIND_SNAPSHOT", "KIND_CONTINUOUS"),
    "hostTracerLevel": _TEXT,
    "deviceTracerLevel": _TEXT,
    "pythonTracerLevel": _TEXT,
    "isTraceEnabled": _TRUTH,
    "autoCaptured": _TRUTH,
    "monitoredEvents": [_TEXT],
}
"""A ProfilerSession."""

_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_MOST_LABELS = 64


def parse(schema: Mapping[str, Any], body: Any, where: str) -> Resource:
    """Validate a request's JSON, and return it with field names in camelCase; snake_case is accepted, too.

    Args:
        schema: The message's fields.
        body: The JSON.
        where: The name of the message in the request, for errors.

    Raises:
        ApiError: A field is unknown, or a value has the wrong type.
    """
    found: Resource = _parse(schema, body, where)
    _check_labels(found.get("labels", {}))
    return found


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 timestamp to an aware datetime, truncated to microseconds.

    Raises:
        ValueError: The text is not such a timestamp.
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", text)
    if not found:
        raise ValueError(f"{text!r} is not an RFC 3339 timestamp")
    seconds, fraction, zone = found.groups()
    return datetime.fromisoformat(f"{seconds}.{(fraction or '0').ljust(6, '0')[:6]}{zone.replace('Z', '+00:00')}")


def camel_case(name: str) -> str:
    """Convert a field's name to camelCase."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _parse(schema: Any, value: Any, where: str) -> Any:
    if isinstance(schema, _Scalar):
        if not schema.fits(value):
            raise ApiError(400, f"Invalid value at '{where}' ({schema.name}), {value!r}")
        return value
    if isinstance(schema, list):
        if not isinstance(value, list):
            raise ApiError(400, f"Invalid value at '{where}' (repeated), {value!r}")
        return [_parse(schema[0], one, f"{where}[{index}]") for index, one in enumerate(value)]
    if not isinstance(value, dict):
        raise ApiError(400, f"Invalid value at '{where}' (an object), {value!r}")
    if isinstance(schema, _MapOf):
        return {name: _parse(schema.value, one, f"{where}[{name}].value") for name, one in value.items()}
    if "*" in schema:
        return {name: _parse(schema["*"], one, f"{where}[{name}].value") for name, one in value.items()}
    found = {}
    for name, one in value.items():
        field = name if name in schema else camel_case(name)
        if field not in schema:
            raise ApiError(
                400, f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
            )
        if one is not None:
            found[field] = _parse(schema[field], one, f"{where}.{name}")
    return found


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > _MOST_LABELS:
        raise ApiError(400, f"expected at most {_MOST_LABELS} labels, got {len(labels)}")
    for name, value in labels.items():
        if not name[:1].isalpha() or not _LABEL.fullmatch(name) or not _LABEL.fullmatch(value):
            raise ApiError(
                400,
                f"invalid label {name!r}: {value!r}; name and value have at most 63 lower-case letters, digits, "
                "_ and -, and the name starts with a letter",
            )
