"""Metrics of this host's TPU chips by `libtpu.sdk.tpumonitoring`.

Without a TPU, libtpu queries the metadata server for one, for minutes. So it is called only if the host has chips or
TPU_SKIP_MDS_QUERY=1 prevents the query, after the job itself has started its TPU runtime, and in a thread, for
which the caller waits a bounded time.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.process_hooks import import_undisturbed

from google_cloud_mldiagnostics._runtimes import jax_is_initialised, torch_xla_is_initialised
from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics.metric_types import AcceleratorType

__all__ = ["collect_tpu", "may_have_tpu", "runtime_is_up"]

_MODULES: Final = ("libtpu.sdk.tpumonitoring", "libtpu.sdk.monitoring")
"""Older releases have the second one."""


def may_have_tpu(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> bool:
    """Return True if libtpu can be called without searching for a missing TPU.

    Args:
        environ: The environment variables. MLRUN_SKIP_LIBTPU=1 means False.
        devices: The folder of the chips' files.
    """
    if environ.get("MLRUN_SKIP_LIBTPU", "").lower() in ("1", "true", "yes"):
        return False
    if environ.get("TPU_SKIP_MDS_QUERY") in ("1", "true"):
        return True
    return any(devices.glob("accel[0-9]*")) or any((devices / "vfio").glob("[0-9]*"))


def runtime_is_up() -> bool:
    """Return True if the job has started its TPU runtime: before that, libtpu has no metrics."""
    return jax_is_initialised() or torch_xla_is_initialised()


def collect_tpu() -> list[Reading]:
    """Return duty cycle, TensorCore utilisation and HBM of each chip; nothing without libtpu or without data."""
    monitoring = _monitoring()
    if monitoring is None:
        return []
    supported = set(monitoring.list_supported_metrics())  # It gives no error for a name that it does not know.
    duty_cycle, cores, used, total = (
        _data(monitoring, supported, name)
        for name in ("duty_cycle_pct", "tensorcore_util", "hbm_capacity_usage", "hbm_capacity_total")
    )
    readings = [
        _reading("tpu_duty_cycle", _by_chip(duty_cycle)),
        _reading("tpu_tensorcore_utilization", _by_chip(_chips_of_cores(cores, len(duty_cycle) or len(total)))),
        _hbm(used, total),
    ]
    return [reading for reading in readings if reading is not None]


def _monitoring() -> Any:
    for name in _MODULES:
        import_undisturbed(name)
        if sys.modules.get(name):
            return sys.modules[name]
    return None


def _data(monitoring: Any, supported: set[str], name: str) -> list[float | None]:
    """Return one value for each chip or core; None if it is not a number."""
    return [_number(text) for text in monitoring.get_metric(name).data()] if name in supported else []


def _number(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _chips_of_cores(cores: list[float | None], chips: int) -> list[float | None]:
    """Return the mean over the cores of each chip: some generations have two, and libtpu reports each."""
    if not chips or len(cores) % chips:
        return cores
    each = len(cores) // chips
    return [_mean(cores[first : first + each]) for first in range(0, len(cores), each)] if each else []


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_chip(values: list[float | None]) -> dict[str, float]:
    return {f"tpu{chip}": value for chip, value in enumerate(values) if value is not None}


def _hbm(used: list[float | None], total: list[float | None]) -> Reading | None:
    used_by_chip, total_by_chip = _by_chip(used), _by_chip(total)
    chips = [chip for chip in used_by_chip if total_by_chip.get(chip, 0) > 0]
    return _reading(
        "hbm_utilization",
        {chip: 100 * used_by_chip[chip] / total_by_chip[chip] for chip in chips},
        used_bytes=[int(used_by_chip[chip]) for chip in chips],
        total_bytes=[int(total_by_chip[chip]) for chip in chips],
    )


def _reading(name: str, values: dict[str, float], **beside: list[int]) -> Reading | None:
    if not values:
        return None
    return Reading(name, "%", list(values.values()), list(values), AcceleratorType.TPU, beside)
