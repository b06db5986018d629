"""The configuration of stack traces and hang detection."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = ["DebugConfig"]


@dataclass
class DebugConfig:
    """Stack traces and hang detection.

    Attributes:
        stack_trace_config: None collects no stack traces.
        hang_config: None turns hang detection off.
    """

    stack_trace_config: StackTraceConfig | None = None
    hang_config: HangConfig | None = None
