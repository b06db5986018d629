"""The failure with which a job left its block: what the job sent of it, and the file systems that it is about.

They are measured here, since a file system that does not answer would keep the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["failure_fields"]


def failure_fields(failure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the entry; waits a moment for the file systems.

    Args:
        failure: The `failure` of the job's message that it has left the block: `fields` and `paths`.
    """
    fields = dict(failure.get("fields") or {})
    if paths := failure.get("paths"):
        from ml_diagnostics_common.file_systems import FileSystemProbes

        if answers := FileSystemProbes(paths).answers():
            fields["file_systems"] = [each.to_json() for each in answers]
    return fields
