"""A driver for the real pynvml: the functions of libnvidia-ml.so that it calls, in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest


@dataclass
class Gpu:
    """The driver's values for a GPU; None means that the GPU does not support the query."""

    uuid: str
    utilization: int | None = 0
    used_bytes: int | None = 0
    total_bytes: int = 80 << 30
    tensor: float | None = None
    samples: list[tuple[int, int]] = field(default_factory=list)
    """Samples of the utilisation: (microseconds, percent)."""
    ecc: dict[tuple[int, int], int] | None = None
    """Counts of ECC errors by (corrected or not, since the driver was loaded or ever)."""
    remapped_rows: tuple[int, int, int, int] | None = None
    reasons: int | None = None
    """The bits of what sets its clocks."""
    clocks: tuple[int, int] = (345, 1980)
    links: list[bool] = field(default_factory=list)
    """For each NVLink, True if it is up."""
    link_errors: dict[tuple[int, int], int] = field(default_factory=dict)
    """Counts by (link, counter)."""
    has_events: bool = True


class Driver:
    """A driver that answers pynvml; install it with `installed`."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self.gpus = gpus
        self.samples_alive = 0
        self.has_new_names = True
        """False for a driver from before `ClocksEventReasons`."""
        self.events: list[tuple[int, int, int]] = []
        """Events that nothing has taken: (index of the GPU, kind, data)."""
        self.registered: list[tuple[int, int]] = []
        self._handed_out = 0

    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Driver:
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self

    def _gpu(self, handle: Any) -> Gpu:
        return self.gpus[_address(handle) - 1]

    def nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.gpus)
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        _point(handle, index.value + 1)
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._gpu(handle).uuid.encode()
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        utilization = self._gpu(handle).utilization
        if utilization is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        rates._obj.gpu = utilization
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle)
        if gpu.used_bytes is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        memory._obj.used, memory._obj.total = gpu.used_bytes, gpu.total_bytes
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetSamples(  # noqa: N802
        self, handle: Any, kind: Any, since: Any, value_type: Any, count: Any, samples: Any
    ) -> int:
        new = [sample for sample in self._gpu(handle).samples if sample[0] > since.value]
        if not new:
            return pynvml.NVML_ERROR_NOT_FOUND
        for sample, (moment, percent) in zip(samples or [], new, strict=False):
            sample.timeStamp, sample.sampleValue.uiVal = moment, percent
        value_type._obj.value = 1  # An unsigned int.
        count._obj.value = len(new)
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, count: Any) -> int:  # noqa: N802
        ecc = self._gpu(handle).ecc
        if ecc is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        count._obj.value = ecc[kind.value, counter.value]
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetRemappedRows(self, handle: Any, *results: Any) -> int:  # noqa: N802
        rows = self._gpu(handle).remapped_rows
        if rows is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        for result, value in zip(results, rows, strict=True):
            result._obj.value = value
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, reasons: Any) -> int:  # noqa: N802
        if not self.has_new_names:
            return pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        return self.nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:  # noqa: N802
        bits = self._gpu(handle).reasons
        if bits is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        reasons._obj.value = bits
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:  # noqa: N802
        assert kind.value == pynvml.NVML_CLOCK_SM
        clock._obj.value = self._gpu(handle).clocks[0]
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:  # noqa: N802
        assert kind.value == pynvml.NVML_CLOCK_SM
        clock._obj.value = self._gpu(handle).clocks[1]
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int, state: Any) -> int:  # noqa: N802
        links = self._gpu(handle).links
        if link >= len(links):
            return pynvml.NVML_ERROR_INVALID_ARGUMENT if links else pynvml.NVML_ERROR_NOT_SUPPORTED
        state._obj.value = links[link]
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: int, counter: int, count: Any) -> int:  # noqa: N802
        errors = self._gpu(handle).link_errors
        if (link, counter) not in errors:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        count._obj.value = errors[link, counter]
        return pynvml.NVML_SUCCESS

    def nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        _point(events, 1000)
        return pynvml.NVML_SUCCESS

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        if not self._gpu(handle).has_events:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        assert _address(events) == 1000
        self.registered.append((_address(handle) - 1, kinds.value))
        return pynvml.NVML_SUCCESS

    def nvmlEventSetWait_v2(self, events: Any, data: Any, timeout_ms: Any) -> int:  # noqa: N802
        assert timeout_ms.value == 0
        if not self.events:
            return pynvml.NVML_ERROR_TIMEOUT
        index, kind, value = self.events.pop(0)
        event = data._obj
        event.device = pynvml.c_nvmlDevice_t.from_buffer(_pointer_to(index + 1))
        event.eventType, event.eventData = kind, value
        return pynvml.NVML_SUCCESS

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:  # noqa: N802
        support._obj.isSupportedDevice = self._gpu(handle).tensor is not None
        return pynvml.NVML_SUCCESS

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:  # noqa: N802
        self.samples_alive += 1
        self._handed_out += 1
        _point(sample, self._handed_out)
        return pynvml.NVML_SUCCESS

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:  # noqa: N802
        return pynvml.NVML_SUCCESS

    def nvmlGpmSampleFree(self, sample: Any) -> int:  # noqa: N802
        self.samples_alive -= 1
        return pynvml.NVML_SUCCESS

    def nvmlGpmMetricsGet(self, question: Any) -> int:  # noqa: N802
        asked = question._obj
        assert asked.version == 1
        assert asked.numMetrics == 1
        assert asked.metrics[0].metricId == pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        assert _address(asked.sample1) < _address(asked.sample2)
        asked.metrics[0].value = next(gpu.tensor for gpu in self.gpus if gpu.tensor is not None)
        return pynvml.NVML_SUCCESS


def _address(pointer: Any) -> int:
    import ctypes

    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _point(reference: Any, address: int) -> None:
    import ctypes

    pointer = reference._obj
    ctypes.c_void_p.from_address(ctypes.addressof(pointer)).value = address


def _pointer_to(address: int) -> Any:
    import ctypes

    return ctypes.c_void_p(address)
