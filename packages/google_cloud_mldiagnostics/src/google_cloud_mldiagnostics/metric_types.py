"""The predefined metrics and their units."""

from __future__ import annotations

import enum

__all__ = ["METRIC_UNITS", "AcceleratorType", "MetricType"]


class MetricType(enum.Enum):
    """The predefined metrics; `metrics.record` takes any other name as text."""

    LEARNING_RATE = "learning_rate"
    LOSS = "loss"
    GRADIENT_NORM = "gradient_norm"
    TOTAL_WEIGHTS = "total_weights"
    STEP_TIME = "step_time"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MFU = "mfu"
    TFLOPS = "tflops"
    TPU_DUTY_CYCLE = "tpu_duty_cycle"
    TPU_TENSORCORE_UTILIZATION = "tpu_tensorcore_utilization"
    HBM_UTILIZATION = "hbm_utilization"
    GPU_DUTY_CYCLE = "gpu_duty_cycle"
    GPU_UTILIZATION = "gpu_utilization"
    GPU_TENSORCORE_UTILIZATION = "gpu_tensorcore_utilization"
    VRAM_UTILIZATION = "vram_utilization"
    HOST_CPU_UTILIZATION = "host_cpu_utilization"
    HOST_MEMORY_UTILIZATION = "host_memory_utilization"
    STEP = "step"

    # Members are singletons. Enum's own hash is Python code, which each `metrics.record` would run.
    __hash__ = object.__hash__


METRIC_UNITS: dict[str, str] = {
    "learning_rate": "1",
    "loss": "1",
    "gradient_norm": "1",
    "total_weights": "1",
    "step_time": "s",
    "throughput": "1/s",
    "latency": "s",
    "mfu": "%",
    "tflops": "TFLOPS",
    "tpu_duty_cycle": "%",
    "tpu_tensorcore_utilization": "%",
    "hbm_utilization": "%",
    "gpu_duty_cycle": "%",
    "gpu_utilization": "%",
    "gpu_tensorcore_utilization": "%",
    "vram_utilization": "%",
    "host_cpu_utilization": "%",
    "host_memory_utilization": "%",
    "step": "1",
}
"""The unit of each metric's value; every other name has "1"."""


class AcceleratorType(enum.Enum):
    """The kind of device that a system metric describes."""

    TPU = "tpu"
    GPU = "gpu"
    CPU = "cpu"
    UNKNOWN = "unknown"
