"""Machines that could ever run a pod: its requests against known machine types, or nodes of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ml_diagnostics_console._facts.kubernetes_facts import NodeFacts
from ml_diagnostics_console._rules.waiting import amount

__all__ = ["ACCELERATORS", "KNOWN_MACHINES", "Fit", "fit_of"]

TPU, GPU = "google.com/tpu", "nvidia.com/gpu"
ACCELERATORS: Final = (TPU, GPU, "amd.com/gpu")
"""Resources that count chips."""
_TPU_LABEL: Final = "cloud.google.com/gke-tpu-accelerator"
_GPU_LABEL: Final = "cloud.google.com/gke-accelerator"
_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
_LABELS_OF_TYPES: Final = (_TPU_LABEL, _GPU_LABEL, _TYPE_LABEL)
_GIB: Final = 2.0**30


class Fit(NamedTuple):
    """The answer for one pod.

    Attributes:
        smallest: The smallest machine that fits it; None if none does.
        reason: Without one: what the pod asks for, and the most that a machine has, for people.
        largest: Without one: the requests of the pod, lowered to what the nearest machine has.
    """

    smallest: NodeFacts | None
    reason: str = ""
    largest: str = ""


def fit_of(requests: Mapping[str, float], selector: Mapping[str, str], machines: Sequence[NodeFacts]) -> Fit:
    """Return whether a pod fits any machine while nothing else runs on it.

    Args:
        requests: The amounts that the pod requests of its node.
        selector: Its node selector; of a machine type, only the labels of its kind are known.
        machines: `KNOWN_MACHINES`, or the nodes of a cluster.
    """
    wanted = {name: value for name, value in requests.items() if value > 0}
    left = [machine for machine in machines if _is_selected(machine, selector)]
    fitting = [machine for machine in left if not _lacking(wanted, machine)]
    if fitting:
        return Fit(min(fitting, key=_size))
    if not left:
        asked = ", ".join(f"{name}: {value}" for name, value in selector.items())
        return Fit(None, f"no machine has the labels of its node selector ({asked})")
    nearest = max(left, key=lambda machine: (_kinds_met(wanted, machine), *_size(machine)))
    lacking = _lacking(wanted, nearest)
    asks = " and ".join(amount(name, wanted[name]) for name in lacking)
    has = " and ".join(amount(name, nearest.allocatable.get(name, 0.0)) for name in lacking)
    largest = {name: min(value, nearest.allocatable.get(name, 0.0)) for name, value in wanted.items()}
    return Fit(
        None,
        f"each requests {asks}, and the largest machine for it, {nearest.name}, has {has}",
        ", ".join(f"{name}: {_in_manifest(name, value)}" for name, value in largest.items() if value),
    )


def _lacking(wanted: Mapping[str, float], machine: NodeFacts) -> list[str]:
    return [name for name, value in wanted.items() if machine.allocatable.get(name, 0.0) < value]


def _kinds_met(wanted: Mapping[str, float], machine: NodeFacts) -> tuple[int, int]:
    """Return how many of the accelerators a machine has at all, and how many requests it meets."""
    has = sum(1 for name in wanted if name in ACCELERATORS and machine.allocatable.get(name))
    return has, len(wanted) - len(_lacking(wanted, machine))


def _size(machine: NodeFacts) -> tuple[float, float, float]:
    chips = sum(machine.allocatable.get(name, 0.0) for name in ACCELERATORS)
    return chips, machine.allocatable.get("memory", 0.0), machine.allocatable.get("cpu", 0.0)


def _is_selected(machine: NodeFacts, selector: Mapping[str, str]) -> bool:
    if machine not in KNOWN_MACHINES:
        return machine.has_labels(dict(selector))
    return all(machine.labels.get(name) == value for name, value in selector.items() if name in _LABELS_OF_TYPES)


def _in_manifest(resource: str, value: float) -> str:
    """Return an amount as a manifest has it."""
    if resource in ("memory", "ephemeral-storage"):
        return f"{value / _GIB:.0f}Gi" if value >= _GIB else f"{value / 2**20:.0f}Mi"
    return f"{value:.3g}" if value < 10 else f"{int(value)}"


# --- Known machine types ------------------------------------------------------------------------------

# Name, accelerator, chips, CPUs, memory in GiB. From the documentation of Google Cloud's machine types, 2026-11.
_TPU_TYPES: Final = (
    ("ct3-hightpu-4t", "tpu-v3-device", 4, 96, 340),
    ("ct3p-hightpu-4t", "tpu-v3-slice", 4, 48, 340),
    ("ct4p-hightpu-4t", "tpu-v4-podslice", 4, 240, 407),
    ("ct5lp-hightpu-1t", "tpu-v5-lite-podslice", 1, 24, 48),
    ("ct5lp-hightpu-4t", "tpu-v5-lite-podslice", 4, 112, 192),
    ("ct5lp-hightpu-8t", "tpu-v5-lite-podslice", 8, 224, 384),
    ("ct5l-hightpu-8t", "tpu-v5-lite-device", 8, 224, 384),
    ("ct5p-hightpu-4t", "tpu-v5p-slice", 4, 208, 448),
    ("ct6e-standard-1t", "tpu-v6e-slice", 1, 44, 176),
    ("ct6e-standard-4t", "tpu-v6e-slice", 4, 180, 720),
    ("ct6e-standard-8t", "tpu-v6e-slice", 8, 180, 1440),
    ("tpu7x-standard-4t", "tpu7x", 4, 224, 960),
)
_GPU_TYPES: Final = (
    ("n1-standard-96 with 4 T4", "nvidia-tesla-t4", 4, 96, 360),
    ("n1-standard-96 with 8 V100", "nvidia-tesla-v100", 8, 96, 360),
    ("g2-standard-32", "nvidia-l4", 1, 32, 128),
    ("g2-standard-96", "nvidia-l4", 8, 96, 384),
    ("a2-highgpu-1g", "nvidia-tesla-a100", 1, 12, 85),
    ("a2-highgpu-4g", "nvidia-tesla-a100", 4, 48, 340),
    ("a2-highgpu-8g", "nvidia-tesla-a100", 8, 96, 680),
    ("a2-megagpu-16g", "nvidia-tesla-a100", 16, 96, 1360),
    ("a2-ultragpu-1g", "nvidia-a100-80gb", 1, 12, 170),
    ("a2-ultragpu-8g", "nvidia-a100-80gb", 8, 96, 1360),
    ("a3-highgpu-1g", "nvidia-h100-80gb", 1, 26, 234),
    ("a3-highgpu-8g", "nvidia-h100-80gb", 8, 208, 1872),
    ("a3-megagpu-8g", "nvidia-h100-mega-80gb", 8, 208, 1872),
    ("a3-ultragpu-8g", "nvidia-h200-141gb", 8, 224, 2952),
    ("a4-highgpu-8g", "nvidia-b200", 8, 224, 3968),
    ("a4x-highgpu-4g", "nvidia-gb200", 4, 140, 884),
)
_CPU_TYPES: Final = (
    ("e2-standard-4", 4, 16),
    ("n2-standard-32", 32, 128),
    ("c3-standard-176", 176, 704),
    ("c4d-highmem-384", 384, 3024),
    ("m3-ultramem-128", 128, 3904),
    ("x4-megamem-960", 960, 16384),
)


def _allocatable(cpus: int, memory_gib: int) -> dict[str, float]:
    """Return what GKE leaves to pods: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes."""
    reserved_cpu = _reserved(cpus, ((1, 0.06), (1, 0.01), (2, 0.005), (10**6, 0.0025)))
    reserved_memory = 0.098 + _reserved(memory_gib, ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (10**6, 0.02)))
    return {
        "cpu": cpus - reserved_cpu,
        "memory": (memory_gib - reserved_memory) * _GIB,
        "ephemeral-storage": 1e15,  # It depends on the disks that a node pool is given.
    }


def _reserved(size: int, shares: Iterable[tuple[int, float]]) -> float:
    """Return the reserved part: shares of the first units, of the next ones, and so on."""
    reserved, left = 0.0, float(size)
    for units, share in shares:
        reserved += min(left, units) * share
        left = max(0.0, left - units)
    return reserved


def _known(rows: Iterable[tuple[str, str, int, int, int]], resource: str, label: str) -> Iterator[NodeFacts]:
    for name, accelerator, chips, cpus, memory_gib in rows:
        labels = {label: accelerator, _TYPE_LABEL: name.partition(" ")[0]}
        yield NodeFacts(name, {**_allocatable(cpus, memory_gib), resource: float(chips)}, labels=labels)


KNOWN_MACHINES: Final = (
    *_known(_TPU_TYPES, TPU, _TPU_LABEL),
    *_known(_GPU_TYPES, GPU, _GPU_LABEL),
    *(
        NodeFacts(name, _allocatable(cpus, memory_gib), labels={_TYPE_LABEL: name})
        for name, cpus, memory_gib in _CPU_TYPES
    ),
)
"""Machine types of Google Cloud: the largest of each accelerator, and some smaller ones."""
