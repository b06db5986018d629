"""What a viewer VM bears: labels, which can be searched for, and metadata, which take any text.

Labels: https://cloud.google.com/compute/docs/labeling-resources#requirements
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = [
    "BACKEND_LABEL",
    "CREATION_LABEL",
    "LOG_DIRECTORY_KEY",
    "PLUGIN_LABEL",
    "VERSION_LABEL",
    "label_value",
    "log_directory_of",
    "metadata_of",
    "viewer_url",
]

VERSION_LABEL: Final = "xprofiler_version"
"""Marks a VM as one of ours."""
PLUGIN_LABEL: Final = "tensorboard_plugin_profile"
BACKEND_LABEL: Final = "tb_backend_id"
"""The id under which the proxy knows the VM."""
CREATION_LABEL: Final = "xprofiler_creation"
"""Random: what one `create` has made, and may delete again."""
LOG_DIRECTORY_KEY: Final = "xprofiler_log_directory"
"""In the metadata; releases before 0.0.11 had it as a label."""

_SLASH: Final = "--slash--"  # What those releases wrote for a slash.
_LONGEST_VALUE: Final = 63
_NOT_IN_A_VALUE: Final = re.compile(r"[^\w-]")


def label_value(text: str) -> str:
    """Return a text as a label can have it: `1.0.17` is `1-0-17`."""
    return _NOT_IN_A_VALUE.sub("-", text.lower())[:_LONGEST_VALUE]


def metadata_of(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return a VM's metadata, key by key.

    Args:
        instance: A resource of Compute.
    """
    items: Iterable[Mapping[str, Any]] = instance.get("metadata", {}).get("items", ())
    return {str(item["key"]): str(item.get("value", "")) for item in items if "key" in item}


def log_directory_of(instance: Mapping[str, Any]) -> str:
    """Return the log directory that a VM is for; empty where it is for none.

    Args:
        instance: A resource of Compute, with its metadata and labels.
    """
    named = metadata_of(instance).get(LOG_DIRECTORY_KEY, "").rstrip("/")
    if named:
        return named
    label = str(instance.get("labels", {}).get(LOG_DIRECTORY_KEY, ""))
    return f"gs://{label.replace(_SLASH, '/')}".rstrip("/") if label else ""


def viewer_url(backend: str | None, zone: str) -> str | None:
    """Return the proxy's link to a VM; None while the proxy does not know it.

    Args:
        backend: The label `tb_backend_id`.
        zone: Such as us-central1-a.
    """
    if not backend or not zone:
        return None
    return f"https://{backend}-dot-{zone.rpartition('-')[0]}.notebooks.googleusercontent.com"
