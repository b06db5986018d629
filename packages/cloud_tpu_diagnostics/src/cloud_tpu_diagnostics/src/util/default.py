"""What is used when a configuration does not say."""

from __future__ import annotations

from typing import Final

from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = ["STACK_TRACE_DIR_DEFAULT", "STACK_TRACE_INTERVAL_SECONDS_DEFAULT"]

STACK_TRACE_DIR_DEFAULT: Final = "/tmp/debugging"
STACK_TRACE_INTERVAL_SECONDS_DEFAULT: Final = StackTraceConfig().stack_trace_interval_seconds
