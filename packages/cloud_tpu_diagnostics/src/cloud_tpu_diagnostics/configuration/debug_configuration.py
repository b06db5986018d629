"""The configuration of stack traces, hang detection and fast-fail."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = ["DebugConfig"]


@dataclass
class DebugConfig:
    """Stack traces, hang detection and fast-fail.

    Attributes:
        stack_trace_config: None collects no stack traces.
        hang_config: None turns hang detection off.
        fast_fail_config: None turns fast-fail off, unless `ML_DIAGNOSTICS_FAST_FAIL` is 1.
    """

    stack_trace_config: StackTraceConfig | None = None
    hang_config: HangConfig | None = None
    fast_fail_config: FastFailConfig | None = None
