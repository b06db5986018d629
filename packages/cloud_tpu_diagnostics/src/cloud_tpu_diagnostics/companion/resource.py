"""Cloud Logging's monitored resource: what the documented queries, metrics and dashboards select entries by.

`tpu_worker` on TPU VMs, `k8s_container` in pods (https://cloud.google.com/logging/docs/api/v2/resource-list).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["CONTAINER_NAME", "monitored_resource"]

CONTAINER_NAME: Final = "ml-diagnostics-stacktrace"
"""In place of the job's container: dashboards look for containers with `stacktrace` in their names, which sidecars
have that tail the trace files."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_SECONDS = 1.0
_TPU_ENVIRONMENT = "attributes/tpu-env"
"""Of a TPU VM: lines such as `NODE_ID: 'my-tpu'` and `WORKER_ID: '0'`."""


def monitored_resource(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the resource of this process; empty where it is on none of Google's machines. May wait two seconds.

    Args:
        environ: The environment variables.
    """
    from ml_diagnostics_common.credentials.instance_metadata import instance_metadata, on_google_hardware
    from ml_diagnostics_common.environment import Orchestrator, orchestrator

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
            "namespace_name": _namespace(environ),
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
    """The names of the TPU and of this worker of it; empty on a machine without a TPU."""
    told = dict(re.findall(r"^(\w+): *'?([^'\n]*)'?$", value(_TPU_ENVIRONMENT), re.MULTILINE))
    node = told.get("NODE_ID") or environ.get("TPU_NAME", "")
    worker = told.get("WORKER_ID") or value("attributes/agent-worker-number") or environ.get("TPU_WORKER_ID", "")
    return node, worker or "0"


def _namespace(environ: Mapping[str, str]) -> str:
    try:
        return environ.get("POD_NAMESPACE") or _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return "default"


def _value(path: str, environ: Mapping[str, str]) -> str:
    """Return a value that the metadata server has of this machine; empty where it has none."""
    from ml_diagnostics_common.credentials.instance_metadata import metadata_value

    status, text = metadata_value(f"instance/{path}", timeout_seconds=_SECONDS, environ=environ)
    return text if status == 200 else ""
