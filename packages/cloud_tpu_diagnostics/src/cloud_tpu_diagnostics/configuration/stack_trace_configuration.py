"""The configuration of stack traces."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StackTraceConfig"]


@dataclass
class StackTraceConfig:
    """Stack traces on faults, on a signal, and every so many seconds.

    Attributes:
        collect_stack_trace: False collects nothing.
        stack_trace_to_cloud: True writes to files in `/tmp/debugging`, and from there to Cloud Logging, or without a
            cloud to the journal; False writes to stderr.
        stack_trace_interval_seconds: Seconds between two snapshots, above zero.
    """

    collect_stack_trace: bool = False
    stack_trace_to_cloud: bool = False
    stack_trace_interval_seconds: float = 600
