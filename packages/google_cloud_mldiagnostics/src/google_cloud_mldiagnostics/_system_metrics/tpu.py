"""Metrics of this host's TPU chips by `libtpu.sdk.tpumonitoring`.

Without a TPU, libtpu queries the metadata server for one, for minutes. So it is called only if the host has chips or
TPU_SKIP_MDS_QUERY=1 prevents the query, after the job itself has started its TPU runtime, and in a thread, for
which the caller waits a bounded time.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.guard import LOSSES, report_loss, warn_once
from ml_diagnostics_common.process_hooks import import_undisturbed

from google_cloud_mldiagnostics._runtimes import jax_is_initialised, torch_xla_is_initialised
from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics._system_metrics.changes import Changes
from google_cloud_mldiagnostics._system_metrics.libtpu_metrics import METRICS, LibtpuMetric
from google_cloud_mldiagnostics.metric_types import AcceleratorType

__all__ = ["TpuDetails", "collect_tpu", "may_have_tpu", "runtime_is_up"]

_MODULES: Final = ("libtpu.sdk.tpumonitoring", "libtpu.sdk.monitoring")
"""Older releases have the second one."""
_IDLE_SECONDS: Final = 10.0
"""A device that is idle for longer waits for its host; a shorter pause between two steps does not count as a change."""


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


class TpuDetails:
    """Read all else that libtpu reports: see `libtpu_metrics`.

    Args:
        monotonic: The clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._changes = Changes(monotonic)
        self._idle: list[bool] = []
        """For each chip, True if it is idle for long."""

    def collect(self) -> list[Reading]:
        """Return the states that have changed, and once a minute everything."""
        monitoring = _monitoring()
        if monitoring is None:
            return []
        supported = set(monitoring.list_supported_metrics())
        asked = [metric for metric in METRICS if metric.name in supported]
        readings = [
            self._reading(metric, monitoring)
            for metric in asked
            if metric.is_watched or self._changes.is_due(metric.name)
        ]
        return [reading for reading in readings if reading is not None]

    def _reading(self, metric: LibtpuMetric, monitoring: Any) -> Reading | None:
        """Return a metric's reading if it is to be recorded; a metric that fails costs no other."""
        try:
            data = monitoring.get_metric(metric.name).data()
        except Exception as error:
            report_loss("SystemMetrics", error, f"read {metric.name} from libtpu")
            return None
        reading, unknown = metric.parse(data)
        if unknown:
            LOSSES.add(f"system_metrics: unknown form of {metric.name}", len(unknown))
            warn_once(
                ("libtpu form", metric.name),
                "libtpu reports %s in a form that is not known, which is not recorded: %.100r",
                metric.name,
                unknown[0],
            )
        is_recorded = reading is not None and self._changes.take(metric.name, self._state(metric, reading))
        return reading if is_recorded else None

    def _state(self, metric: LibtpuMetric, reading: Reading) -> object:
        """Return what is recorded at once when it changes.

        A queue changes with each program, and the idle time with the clock. So both are recorded when a chip becomes
        idle for long, or ends to be: together they tell a late host from a device that is stuck.
        """
        if metric.name == "idle_duration":
            self._idle = [value >= _IDLE_SECONDS for value in reading.values]
        if metric.name in ("idle_duration", "hlo_queue_size"):
            return self._idle
        return (reading.values, reading.beside) if metric.is_watched else None


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
