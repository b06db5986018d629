"""What this host's TPU chips do, as `libtpu.sdk.tpumonitoring` tells.

Without a TPU libtpu asks the metadata server for one, for minutes. So it is asked only where there are chips, or where
TPU_SKIP_MDS_QUERY=1 keeps it from that; once the job itself has started its TPU runtime; and never in a thread that
somebody waits for.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from google_cloud_mldiagnostics.metric_types import AcceleratorType
from google_cloud_mldiagnostics.runtimes import jax_is_initialised, torch_xla_is_initialised
from google_cloud_mldiagnostics.system_metrics.readings import Reading

__all__ = ["collect_tpu", "may_have_tpu", "runtime_is_up"]

_MODULES: Final = ("libtpu.sdk.tpumonitoring", "libtpu.sdk.monitoring")
"""The latter in releases of libtpu before 0.0.17."""


def may_have_tpu(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> bool:
    """Whether libtpu can be asked without that it looks for a TPU in vain.

    Args:
        environ: The environment variables. MLRUN_SKIP_LIBTPU=1 says no.
        devices: Where the chips' files are.
    """
    if environ.get("MLRUN_SKIP_LIBTPU", "").lower() in ("1", "true", "yes"):
        return False
    if environ.get("TPU_SKIP_MDS_QUERY") in ("1", "true"):
        return True
    return any(devices.glob("accel[0-9]*")) or any((devices / "vfio").glob("[0-9]*"))


def runtime_is_up() -> bool:
    """Whether the job has started its TPU runtime: before that, there is nothing that libtpu could tell."""
    return jax_is_initialised() or torch_xla_is_initialised()


def collect_tpu() -> list[Reading]:
    """Duty cycle, TensorCore utilisation and HBM of each chip; nothing where libtpu is not installed or has no data."""
    monitoring = _monitoring()
    if monitoring is None:
        return []
    supported = set(monitoring.list_supported_metrics())  # It gives no error for a name that it does not know.
    readings = [
        _of_chips("tpu_duty_cycle", _data(monitoring, supported, "duty_cycle_pct")),
        _of_chips("tpu_tensorcore_utilization", _data(monitoring, supported, "tensorcore_util")),
        _hbm(
            _data(monitoring, supported, "hbm_capacity_usage"),
            _data(monitoring, supported, "hbm_capacity_total"),
        ),
    ]
    return [reading for reading in readings if reading is not None]


def _monitoring() -> Any:
    for name in _MODULES:
        try:
            return sys.modules.get(name) or importlib.import_module(name)
        except ImportError:
            continue
    return None


def _data(monitoring: Any, supported: set[str], name: str) -> dict[int, float]:
    """By chip; a chip whose value is no number is absent."""
    if name not in supported:
        return {}
    return {
        chip: value
        for chip, text in enumerate(monitoring.get_metric(name).data())
        if (value := _number(text)) is not None
    }


def _number(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _of_chips(name: str, values: Mapping[int, float], **beside: Any) -> Reading | None:
    if not values:
        return None
    chips = [f"tpu{chip}" for chip in values]
    return Reading(name, "%", list(values.values()), chips, AcceleratorType.TPU, beside)


def _hbm(used: Mapping[int, float], total: Mapping[int, float]) -> Reading | None:
    chips = [chip for chip in used if total.get(chip, 0) > 0]
    return _of_chips(
        "hbm_utilization",
        {chip: 100 * used[chip] / total[chip] for chip in chips},
        used_bytes=[int(used[chip]) for chip in chips],
        total_bytes=[int(total[chip]) for chip in chips],
    )
