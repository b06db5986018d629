"""Validation of VMs: reject what the real service rejects.

Rules: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_testing.http_server import ApiError

_WRITABLE = """advancedMachineFeatures canIpForward confidentialInstanceConfig deletionProtection description disks
    displayDevice guestAccelerators hostname keyRevocationActionType labels machineType metadata minCpuPlatform name
    networkInterfaces networkPerformanceConfig params privateIpv6GoogleAccess reservationAffinity resourcePolicies
    scheduling serviceAccounts shieldedInstanceConfig sourceMachineImage tags"""
_ADDED = """cpuPlatform creationTimestamp fingerprint id kind labelFingerprint lastStartTimestamp lastStopTimestamp
    resourceStatus selfLink startRestricted status statusMessage zone"""
FIELDS: Final = frozenset([*_WRITABLE.split(), *_ADDED.split()])
_SHAPES: Final[Mapping[str, type]] = {
    "disks": list,
    "labels": dict,
    "machineType": str,
    "metadata": dict,
    "name": str,
    "networkInterfaces": list,
    "scheduling": dict,
    "tags": dict,
}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MAX_METADATA_BYTES = 256 * 1024
_MAX_ALL_METADATA_BYTES = 512 * 1024
_MAX_LABELS = 64


def check_instance(body: Mapping[str, Any]) -> None:
    """Reject an invalid VM.

    Raises:
        ApiError: A field is unknown or has the wrong type, or labels or metadata are invalid.
    """
    unknown = sorted(set(body) - FIELDS)
    if unknown:
        message = f"Invalid JSON payload received. Unknown name \"{unknown[0]}\" at 'resource': Cannot find field."
        raise ApiError(400, message, reason="badRequest")
    for field, shape in _SHAPES.items():
        check_shape(f"resource.{field}", body.get(field) or shape(), shape)
    for interface in body.get("networkInterfaces") or []:
        check_shape("resource.networkInterfaces.accessConfigs", interface.get("accessConfigs") or [], list)
    check_labels(body.get("labels") or {})
    check_metadata(body.get("metadata") or {})


def check_name(name: Any) -> None:
    """Reject a name that the real service does not allow for a VM.

    Raises:
        ApiError: The name is invalid.
    """
    check_shape("resource.name", name, str)
    if not _NAME.fullmatch(name):
        pattern = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
        message = f"Invalid value for field 'resource.name': '{name}'. Must be a match of regex '{pattern}'"
        raise ApiError(400, message, reason="invalid")


def check_shape(field: str, value: Any, shape: type) -> None:
    """Reject a value that does not have the expected type: a string, an object or a list of objects.

    Raises:
        ApiError: The value has another type.
    """
    items = value if isinstance(value, list) else []
    if not isinstance(value, shape) or not all(isinstance(item, dict) for item in items):
        message = f"Invalid value at '{field}': {json.dumps(value)[:100]}"
        raise ApiError(400, message, reason="badRequest")


def check_parts(body: Mapping[str, Any]) -> None:
    """Reject a VM without a required field.

    Raises:
        ApiError: The machine type, the disks or the network interfaces are missing.
    """
    for field, why in (
        ("machineType", "A machine type must be given."),
        ("disks", "At least one disk must be given."),
        ("networkInterfaces", "At least one network interface is required."),
    ):
        if not body.get(field):
            raise ApiError(400, f"Invalid value for field 'resource.{field}': ''. {why}", reason="invalid")


def check_labels(labels: Mapping[str, str]) -> None:
    """Reject invalid labels.

    Rules: https://cloud.google.com/compute/docs/labeling-resources#requirements, in ASCII.

    Raises:
        ApiError: There are too many labels, or a key or a value is too long or has invalid characters.
    """
    check_shape("resource.labels", labels, dict)
    if len(labels) > _MAX_LABELS:
        message = f"Invalid value for field 'resource.labels': '{len(labels)}'. There are at most {_MAX_LABELS} labels."
        raise ApiError(400, message, reason="invalid")
    for key, value in labels.items():
        for text, pattern in ((key, _LABEL_KEY), (value, _LABEL_VALUE)):
            if not isinstance(text, str) or not pattern.fullmatch(text):
                message = (
                    f"Invalid value for field 'resource.labels': '{text}'. Label {'key' if text is key else 'value'} "
                    f"'{text}' violates format constraints. It must match '{pattern.pattern}'."
                )
                raise ApiError(400, message, reason="invalid")


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Reject invalid metadata.

    Raises:
        ApiError: A key is invalid or duplicate, or the values are too large.
    """
    items = metadata.get("items") or []
    check_shape("resource.metadata.items", items, list)
    keys = [str(item.get("key")) for item in items]
    sizes = [len(str(item.get("value", "")).encode()) for item in items]
    wrong = [key for key in keys if not _METADATA_KEY.fullmatch(key)]
    twice = [key for key in keys if keys.count(key) > 1]
    field = "Invalid value for field 'resource.metadata'"
    if wrong:
        raise ApiError(400, f"{field}: '{wrong[0]}'. Metadata keys match '{_METADATA_KEY.pattern}'.", reason="invalid")
    if twice:
        raise ApiError(400, f"{field}: Metadata has duplicate key: '{twice[0]}'.", reason="invalid")
    if max(sizes, default=0) > _MAX_METADATA_BYTES or sum(sizes) > _MAX_ALL_METADATA_BYTES:
        raise ApiError(400, f"{field}: Metadata values are too large.", reason="invalid")
