"""The health of this host's NVIDIA GPUs by NVML: errors, what limits their clocks, and their links.

A counter that a GPU, its driver or an old pynvml does not have is absent. Readings are recorded when they change, and
once a minute.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics._system_metrics.changes import Changes
from google_cloud_mldiagnostics.metric_types import AcceleratorType

if TYPE_CHECKING:
    from google_cloud_mldiagnostics._system_metrics.gpu import Gpu

__all__ = ["GpuHealth"]

_REASONS: Final = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""NVML's reasons that limit the clocks, by bit. The others are no limits: idle, or clocks that a user has set."""
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_DRIVER, _OF_LIFE = 0, 1
_SM_CLOCK: Final = 1
_LINK_ERRORS: Final = {"replay": (0,), "recovery": (1,), "crc": (2, 3)}
"""NVML's counters of a link: replays, recoveries, and CRC errors of flow control and of data."""
_MOST_LINKS: Final = 36
_XID_EVENT: Final = 0x08
_MOST_EVENTS: Final = 256
_MOST_CODES: Final = 16


class GpuHealth:
    """Measure the health of some GPUs.

    Args:
        gpus: Returns the GPUs that this process measures.
        monotonic: The clock, in seconds.
    """

    def __init__(self, gpus: Callable[[], Iterable[Gpu]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._gpus = gpus
        self._changes = Changes(monotonic)
        self._xids: _XidErrors | None = None

    def collect(self) -> list[Reading]:
        """Return what has changed, and once a minute everything."""
        gpus = list(self._gpus())
        if not gpus:
            return []
        if self._xids is None:
            self._xids = _XidErrors(gpus[0].nvml)
        readings = [
            self._xids.reading(gpus),
            _reading("gpu_ecc_corrected_errors", {gpu: _ecc(gpu, _CORRECTED) for gpu in gpus}),
            _reading("gpu_ecc_uncorrected_errors", {gpu: _ecc(gpu, _UNCORRECTED) for gpu in gpus}),
            _reading("gpu_remapped_rows", {gpu: _remapped_rows(gpu) for gpu in gpus}),
            _reading("gpu_throttle_reasons", {gpu: _limits(gpu) for gpu in gpus}),
        ]
        links = {gpu: _links(gpu) for gpu in gpus}
        readings.append(_reading("gpu_nvlink_active_links", {gpu: _active(states) for gpu, states in links.items()}))
        errors = {gpu: _link_errors(gpu, states) for gpu, states in links.items()}
        readings.append(_reading("gpu_nvlink_errors", errors))
        return [reading for reading in readings if reading is not None and self._is_new(reading)]

    def _is_new(self, reading: Reading) -> bool:
        """Return True if a reading is to be recorded; a change of the clock frequency alone does not count."""
        fields = {name: values for name, values in reading.beside.items() if not name.endswith("_mhz")}
        return self._changes.take(reading.name, (reading.values, reading.chips, fields))


_Values = Mapping[str, Any]
"""A GPU's value, under `value`, and further fields."""


def _reading(name: str, values: Mapping[Gpu, _Values | None]) -> Reading | None:
    known = {gpu: fields for gpu, fields in values.items() if fields is not None}
    if not known:
        return None
    names = [key for key in next(iter(known.values())) if key != "value"]
    return Reading(
        name,
        "1",
        [float(fields["value"]) for fields in known.values()],
        [f"gpu{gpu.index}" for gpu in known],
        AcceleratorType.GPU,
        {key: [fields[key] for fields in known.values()] for key in names},
        is_detail=True,
    )


def _ecc(gpu: Gpu, kind: int) -> _Values | None:
    since_driver = gpu.call("nvmlDeviceGetTotalEccErrors", kind, _SINCE_DRIVER)
    if since_driver is None:
        return None
    return {"value": since_driver, "aggregate": gpu.call("nvmlDeviceGetTotalEccErrors", kind, _OF_LIFE)}


def _remapped_rows(gpu: Gpu) -> _Values | None:
    """Return how many rows of memory were replaced by spare ones."""
    rows = gpu.call("nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    corrected, uncorrected, is_pending, has_failed = rows
    return {"value": corrected + uncorrected, "pending": bool(is_pending), "failed": bool(has_failed)}


def _limits(gpu: Gpu) -> _Values | None:
    """Return how many reasons limit the clocks now."""
    bits = gpu.call("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # The older name.
        bits = gpu.call("nvmlDeviceGetCurrentClocksThrottleReasons")
    if bits is None:
        return None
    reasons = [name for bit, name in _REASONS.items() if bits & bit]
    clock, highest = gpu.call("nvmlDeviceGetClockInfo", _SM_CLOCK), gpu.call("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
    return {"value": len(reasons), "reasons": reasons, "sm_clock_mhz": clock, "max_sm_clock_mhz": highest}


def _links(gpu: Gpu) -> dict[int, bool]:
    """Return the links that a GPU has, each with True if it is up."""
    states = (gpu.call("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_LINKS))
    return {
        link: bool(state) for link, state in enumerate(itertools.takewhile(lambda state: state is not None, states))
    }


def _active(links: Mapping[int, bool]) -> _Values | None:
    if not links:
        return None
    inactive = [link for link, is_active in links.items() if not is_active]
    return {"value": len(links) - len(inactive), "links": len(links), "inactive_links": inactive}


def _link_errors(gpu: Gpu, links: Mapping[int, bool]) -> _Values | None:
    """Return the errors of all links that are up; None if the GPU counts none of them."""
    counts: dict[str, int] = {}
    for name, counters in _LINK_ERRORS.items():
        found = [
            gpu.call("nvmlDeviceGetNvLinkErrorCounter", link, counter)
            for link, is_active in links.items()
            for counter in counters
            if is_active
        ]
        known = [count for count in found if count is not None]
        if known:
            counts[name] = sum(known)
    return {"value": sum(counts.values()), **{name: counts.get(name) for name in _LINK_ERRORS}} if counts else None


class _XidErrors:
    """The Xid errors that the driver has reported of GPUs since they were first asked for.

    Args:
        nvml: The module `pynvml`.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._codes: dict[int, list[int]] = {}
        """The codes of each registered GPU, by the address of its handle."""
        self._counts: dict[int, int] = {}

    def reading(self, gpus: Iterable[Gpu]) -> Reading | None:
        """Return the number of errors of each GPU, and their codes."""
        gpus = list(gpus)
        for gpu in gpus:
            if _address(gpu.handle) not in self._codes:
                self._register(gpu)
        self._take_events()
        return _reading("gpu_xid_errors", {gpu: self._values(_address(gpu.handle)) for gpu in gpus})

    def _values(self, address: int) -> _Values | None:
        codes = self._codes.get(address)
        return None if codes is None else {"value": self._counts[address], "codes": list(codes)}

    def _register(self, gpu: Gpu) -> None:
        try:
            if self._events is None:
                self._events = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(gpu.handle, _XID_EVENT, self._events)
        except self._nvml.NVMLError:  # Windows, or a GPU without events.
            return
        self._codes[_address(gpu.handle)], self._counts[_address(gpu.handle)] = [], 0

    def _take_events(self) -> None:
        """Take the events that have arrived, without a wait."""
        if not self._codes:
            return
        for _ in range(_MOST_EVENTS):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # NVMLError_Timeout: there are no more.
                return
            address, code = _address(event.device), int(event.eventData)
            codes = self._codes.get(address)
            if codes is not None and int(event.eventType) == _XID_EVENT:
                self._counts[address] += 1
                if code not in codes and len(codes) < _MOST_CODES:
                    codes.append(code)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
