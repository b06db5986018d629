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


class Driver:
    """A driver that answers pynvml; install it with `installed`."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self.gpus = gpus
        self.samples_alive = 0
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
