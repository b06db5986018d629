"""Second name of what `cloud_tpu_diagnostics.configuration.stack_trace_configuration` has."""

from __future__ import annotations

from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = ["StackTraceConfig"]
