"""The name of the cluster: as it was set, else as GKE's metadata server has it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from ml_diagnostics_common.credentials.instance_metadata import metadata_value

from google_cloud_mldiagnostics._kubernetes.values import is_cluster_name

__all__ = ["cluster_name"]

_SECONDS: Final = 1.0
"""For all values: a cluster elsewhere has no metadata server, and packets to it may vanish."""


def cluster_name(
    setting: str, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
) -> str:
    """Return the cluster as `projects/P/locations/L/clusters/C`; empty if it is not known.

    Args:
        setting: The name, or an empty text to ask the metadata server.
        environ: The environment; `NO_GCE_CHECK=true` forbids to ask.
        clock: Monotonic seconds.
    """
    if setting or environ.get("NO_GCE_CHECK", "").lower() == "true":
        return setting
    deadline = clock() + _SECONDS
    values = []
    for path in ("project/project-id", "instance/attributes/cluster-location", "instance/attributes/cluster-name"):
        status, value = metadata_value(path, timeout_seconds=max(0.01, deadline - clock()), environ=environ)
        if status != 200:
            return ""
        values.append(value)
    project, location, cluster = values
    name = f"projects/{project}/locations/{location}/clusters/{cluster}"
    return name if is_cluster_name(name) else ""
