"""Values of the metadata server of a Google VM or pod.

Outside Google Cloud all values are None, and the accelerator is `UNKNOWN`. The first call waits a second for a server
that may not exist, later calls do not wait: `ml_diagnostics_common` searches for it once per process.

Paths and values: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from ml_diagnostics_common.credentials.instance_metadata import instance_metadata, metadata_value
from ml_diagnostics_common.failures import response_error

from ml_goodput_measurement.exceptions import MetadataError

__all__ = [
    "MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING",
    "get_accelerator_type",
    "get_cluster_name",
    "get_gcp_metadata",
    "get_gcp_project_id",
    "get_node_zone",
]

MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING: Mapping[str, str] = {
    "tpu7x": "TPU-7x",
    "ct6e": "TPU-v6e",
    "ct5p": "TPU-v5p",
    "ct5lp": "TPU-v5e",
    "ct5l": "TPU-v5e",
    "ct4p": "TPU-v4p",
    "ct3p": "TPU-v3",
    "ct3": "TPU-v3",
    "tpu-v2": "TPU-v2",
    "tpu": "TPU",
    "a4x-max": "NVIDIA-GB300",
    "a4x": "NVIDIA-GB200",
    "a4-": "NVIDIA-B200",
    "a3-edgegpu": "NVIDIA-H100",
    "a3-highgpu": "NVIDIA-H100",
    "a3-megagpu": "NVIDIA-H100",
    "a3-ultragpu": "NVIDIA-H200",
    "a2": "NVIDIA-A100",
    "g4-": "NVIDIA-RTX-PRO-6000",
    "g2-": "NVIDIA-L4",
    "gpu": "GPU",
}
"""The accelerator of a machine type, for labels: that of the first key that the machine type contains.

The values are those of the public package, since alerts and dashboards filter by them. A4, A4X, G2 and G4 machines,
which it does not distinguish, have values of the same style. Machine types:
https://cloud.google.com/compute/docs/gpus and https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
"""

_PAUSE_SECONDS = 0.1
_UNKNOWN_ACCELERATOR = "UNKNOWN"


def get_gcp_metadata(
    category: str,
    attribute: str,
    timeout: float = 5,
    retries: int = 3,
    *,
    must_answer: bool = False,
    _sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return one value of the metadata server.

    Args:
        category: `instance` or `project`.
        attribute: Path of the value in the category, such as `zone` or `attributes/cluster-name`.
        timeout: Seconds for one try.
        retries: Maximum number of tries. A request is only repeated if an existing server fails.
        must_answer: True to raise if an existing server fails; None then means that the value does not exist. Otherwise
            nothing is raised.

    Returns:
        The value; None without a server, a value, or a response.

    Raises:
        MetadataError: See `must_answer`.
    """
    if instance_metadata() is None:
        return None
    path = quote(f"{category.strip('/')}/{attribute.strip('/')}", safe="/?=&")
    for attempt in range(max(1, retries)):
        if attempt:
            _sleep(_PAUSE_SECONDS * 2**attempt)
        status, text = metadata_value(path, timeout_seconds=timeout)
        if status == 200:
            return text
        if status and not response_error(status, b"").is_temporary:
            return None  # The value does not exist.
    if must_answer:
        raise MetadataError(f"the metadata server of this machine did not answer {path} well")
    return None


def get_gcp_project_id() -> str | None:
    """Return the id of the project that this machine belongs to, or None."""
    return get_gcp_metadata("project", "project-id") or None


def get_node_zone(*, must_answer: bool = False) -> str | None:
    """Return this machine's zone, such as `us-central2-b`, or None; `must_answer` as of `get_gcp_metadata`."""
    return _last_part(get_gcp_metadata("instance", "zone", must_answer=must_answer))


def get_cluster_name(*, must_answer: bool = False) -> str | None:
    """Return the name of this machine's GKE cluster, or None; `must_answer` as of `get_gcp_metadata`."""
    return get_gcp_metadata("instance", "attributes/cluster-name", must_answer=must_answer) or None


def get_accelerator_type(*, must_answer: bool = False) -> str:
    """Return this machine's accelerator by its machine type; `must_answer` as of `get_gcp_metadata`.

    It is the value in `MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING`, or `UNKNOWN` for other machine types, such as one
    without an accelerator, and outside Google Cloud.
    """
    machine_type = (_last_part(get_gcp_metadata("instance", "machine-type", must_answer=must_answer)) or "").lower()
    for part, accelerator_type in MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING.items():
        if part in machine_type:
            return accelerator_type
    return _UNKNOWN_ACCELERATOR


def _last_part(path: str | None) -> str | None:
    """Return the name at the end of projects/NUMBER/zones/NAME."""
    return (path or "").rpartition("/")[2] or None
