"""Labels of a viewer VM, which can be searched, and metadata, which accept any text.

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
"""The VM's id in the proxy."""
CREATION_LABEL: Final = "xprofiler_creation"
"""A random id of one `create` command, which may delete only what it created."""
LOG_DIRECTORY_KEY: Final = "xprofiler_log_directory"
"""The key in the metadata; releases before 0.0.11 used a label."""

_SLASH: Final = "--slash--"  # The encoding of a slash in those releases.
_LONGEST_VALUE: Final = 63
_NOT_IN_A_VALUE: Final = re.compile(r"[^\w-]")


def label_value(text: str) -> str:
    """Return a text as a valid value of a label: `1.0.17` becomes `1-0-17`."""
    return _NOT_IN_A_VALUE.sub("-", text.lower())[:_LONGEST_VALUE]


def metadata_of(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return a VM's metadata as a dictionary.

    Args:
        instance: A resource of Compute.
    """
    items: Iterable[Mapping[str, Any]] = instance.get("metadata", {}).get("items", ())
    return {str(item["key"]): str(item.get("value", "")) for item in items if "key" in item}


def log_directory_of(instance: Mapping[str, Any]) -> str:
    """Return the log directory of a VM; empty if it has none.

    Args:
        instance: A resource of Compute, with its metadata and labels.
    """
    named = metadata_of(instance).get(LOG_DIRECTORY_KEY, "").rstrip("/")
    if named:
        return named
    label = str(instance.get("labels", {}).get(LOG_DIRECTORY_KEY, ""))
    return f"gs://{label.replace(_SLASH, '/')}".rstrip("/") if label else ""


def viewer_url(backend: str | None, zone: str) -> str | None:
    """Return the proxy's link to a VM; None until the VM is registered.

    Args:
        backend: The label `tb_backend_id`.
        zone: Such as us-central1-a.
    """
    if not backend or not zone:
        return None
    return f"https://{backend}-dot-{zone.rpartition('-')[0]}.notebooks.googleusercontent.com"
