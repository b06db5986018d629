"""Metrics of this host's NVIDIA GPUs by NVML; none without a driver or without pynvml."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from ml_diagnostics_common.process_hooks import import_undisturbed

from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics.metric_types import AcceleratorType

__all__ = ["Gpu", "GpuMeter", "is_visible", "may_have_gpu"]

_Answer = TypeVar("_Answer")
_PERCENT_METRICS: Final = ("gpu_duty_cycle", "gpu_utilization", "gpu_tensorcore_utilization")


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Return True if NVIDIA's driver, or that of Windows in WSL, is loaded, so that the large pynvml is useful.

    Args:
        devices: The folder of the driver's file.
    """
    return (devices / "nvidiactl").exists() or (devices / "dxg").exists()


class GpuMeter:
    """Measure the GPUs that this process may use.

    Args:
        is_ours: Return True if this process measures the GPU of a UUID: other processes of the run may see it, too.
        environ: The environment variables, with CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, is_ours: Callable[[str], bool], environ: Mapping[str, str] = os.environ) -> None:
        self._is_ours = is_ours
        self._visible = environ.get("CUDA_VISIBLE_DEVICES")
        self._nvml: Any = None
        self._gpus: list[Gpu] | None = None

    def collect(self) -> list[Reading]:
        """Return duty cycle, utilisation, tensor cores and memory of each GPU, as far as it reports them."""
        ours = self.gpus()
        readings = [_of_gpus(name, {gpu: getattr(gpu, name)() for gpu in ours}) for name in _PERCENT_METRICS]
        readings.append(_memory({gpu: gpu.memory() for gpu in ours}))
        return [reading for reading in readings if reading is not None]

    def gpus(self) -> list[Gpu]:
        """Return the GPUs that this process measures now."""
        if self._gpus is None:
            self._gpus = self._found()
        return [gpu for gpu in self._gpus if self._is_ours(gpu.uuid)]

    def _found(self) -> list[Gpu]:
        import_undisturbed("pynvml")
        nvml: Any = sys.modules.get("pynvml")
        if nvml is None:
            return []
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:  # No driver.
            return []
        gpus = [gpu for index in range(count) if (gpu := Gpu.at(nvml, index)) is not None]
        return [gpu for gpu in gpus if is_visible(gpu.index, gpu.uuid, self._visible)]


def is_visible(index: int, uuid: str, visible: str | None) -> bool:
    """Return True if CUDA shows a GPU to this process.

    Args:
        index: The GPU's index in NVML.
        uuid: The GPU's id in NVML: GPU-8b2c...
        visible: CUDA_VISIBLE_DEVICES: indices or beginnings of UUIDs, up to the first that is neither; None if unset.
    """
    if visible is None:
        return True
    for item in visible.split(","):
        name = item.strip()
        if name.isdigit():
            if int(name) == index:
                return True
        elif name.startswith("GPU-"):
            if uuid.startswith(name):
                return True
        else:
            return False
    return False


class Gpu:
    """One GPU, and where its counters were the last time.

    Attributes:
        nvml: The module `pynvml`.
        handle: NVML's handle of the GPU.
        index: Its index in NVML.
        uuid: Its id in NVML.
    """

    def __init__(self, nvml: Any, index: int, handle: Any, uuid: str) -> None:
        self.nvml = nvml
        self.handle = handle
        self.index = index
        self.uuid = uuid
        self._last_sample_us = 0
        self._gpm_before: Any = None
        self._has_gpm = self.ask(lambda: bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)) or False

    @classmethod
    def at(cls, nvml: Any, index: int) -> Gpu | None:
        """Return the GPU of an index; None if it does not answer, or is not given to this container."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError:
            return None
        return cls(nvml, index, handle, uuid.decode() if isinstance(uuid, bytes) else uuid)

    def gpu_duty_cycle(self) -> float | None:
        """Return the share of the time since the last collection in which a kernel ran, in %."""
        samples = self.ask(self._utilization_samples)
        return sum(samples) / len(samples) if samples else self.gpu_utilization()

    def gpu_utilization(self) -> float | None:
        """Return the present share, as nvidia-smi shows it, in %."""
        return self.ask(lambda: float(self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu))

    def gpu_tensorcore_utilization(self) -> float | None:
        """Return the share of the time since the last collection of work by the tensor cores, in %, since Hopper."""
        return self.ask(self._tensor_utilization) if self._has_gpm else None

    def memory(self) -> tuple[int, int] | None:
        """Return the bytes used, and all bytes."""
        return self.ask(self._memory_bytes)

    def ask(self, question: Callable[[], _Answer]) -> _Answer | None:
        """Return NVML's answer; None if it has none."""
        try:
            return question()
        except (self.nvml.NVMLError, AttributeError):  # This GPU, its driver, MIG or an old pynvml has no answer.
            return None

    def call(self, function: str, *arguments: object) -> Any:
        """Return the answer of a function of NVML on this GPU; None if it has none."""
        return self.ask(lambda: getattr(self.nvml, function)(self.handle, *arguments))

    def _memory_bytes(self) -> tuple[int, int] | None:
        memory = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        return (int(memory.used), int(memory.total)) if memory.total else None

    def _utilization_samples(self) -> list[int]:
        """Return the new samples: the driver keeps some a second, for longer than an interval."""
        kind = self.nvml.NVML_GPU_UTILIZATION_SAMPLES
        _, samples = self.nvml.nvmlDeviceGetSamples(self.handle, kind, self._last_sample_us)
        self._last_sample_us = max((sample.timeStamp for sample in samples), default=self._last_sample_us)
        return [int(sample.sampleValue.uiVal) for sample in samples]

    def _tensor_utilization(self) -> float | None:
        """Return it from the GPM counters: NVML's group "GPM Functions"."""
        nvml = self.nvml
        now = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmSampleGet(self.handle, now)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(now)
            raise
        before, self._gpm_before = self._gpm_before, now
        if before is None:
            return None
        try:
            question = nvml.c_nvmlGpmMetricsGet_t()
            question.version = nvml.NVML_GPM_METRICS_GET_VERSION
            question.numMetrics = 1
            question.sample1, question.sample2 = before, now
            question.metrics[0].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
            answer = nvml.nvmlGpmMetricsGet(question).metrics[0]
            return float(answer.value) if answer.nvmlReturn == nvml.NVML_SUCCESS else None
        finally:
            nvml.nvmlGpmSampleFree(before)


def _of_gpus(name: str, values: Mapping[Gpu, float | None], **beside: Any) -> Reading | None:
    known = {gpu: value for gpu, value in values.items() if value is not None}
    if not known:
        return None
    chips = [f"gpu{gpu.index}" for gpu in known]
    return Reading(name, "%", list(known.values()), chips, AcceleratorType.GPU, beside)


def _memory(values: Mapping[Gpu, tuple[int, int] | None]) -> Reading | None:
    known = {gpu: value for gpu, value in values.items() if value is not None}
    return _of_gpus(
        "vram_utilization",
        {gpu: 100 * used / total for gpu, (used, total) in known.items()},
        used_bytes=[used for used, _ in known.values()],
        total_bytes=[total for _, total in known.values()],
    )
