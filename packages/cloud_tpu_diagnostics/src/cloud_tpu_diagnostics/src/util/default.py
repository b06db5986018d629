"""The defaults of configurations."""

from __future__ import annotations

from typing import Final

from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = [
    "COLLECT_STACK_TRACE_DEFAULT",
    "STACK_TRACE_DIR_DEFAULT",
    "STACK_TRACE_INTERVAL_SECONDS_DEFAULT",
    "STACK_TRACE_TO_CLOUD_DEFAULT",
]

COLLECT_STACK_TRACE_DEFAULT: Final = StackTraceConfig().collect_stack_trace
STACK_TRACE_DIR_DEFAULT: Final = "/tmp/debugging/"
STACK_TRACE_INTERVAL_SECONDS_DEFAULT: Final = StackTraceConfig().stack_trace_interval_seconds
STACK_TRACE_TO_CLOUD_DEFAULT: Final = StackTraceConfig().stack_trace_to_cloud
