"""What helps to debug a job."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = ["DebugConfig"]


@dataclass
class DebugConfig:
    """Stack traces, and watching for hangs.

    Attributes:
        stack_trace_config: None: no stack traces.
        hang_config: None: hangs are not watched for.
    """

    stack_trace_config: StackTraceConfig | None = None
    hang_config: HangConfig | None = None
