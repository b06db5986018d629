"""Functions of the public package that turn stack traces on and off: for programs that do not use `diagnose`."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import IO, Any

from cloud_tpu_diagnostics._config import LONGEST_INTERVAL_SECONDS
from cloud_tpu_diagnostics._dumps.text import header
from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
from cloud_tpu_diagnostics.diagnostic import diagnose

__all__ = [
    "StackTraceConfig",
    "disable_stack_trace_dumping",
    "enable_stack_trace_dumping",
    "user_signal_handler_wrapper",
]

# State of the process: the blocks that calls have entered, of which each call that disables leaves one.
_enabled: list[diagnose] = []


def enable_stack_trace_dumping(stack_trace_config: StackTraceConfig) -> None:
    """Have faults and SIGUSR1 dump stacks, as in a block of `diagnose`; not periodically: see `send_user_signal`.

    Args:
        stack_trace_config: The destination of the stacks. Its `collect_stack_trace` has no effect here.

    Raises:
        ConfigurationError: It cannot be used.
    """
    traces = replace(
        stack_trace_config, collect_stack_trace=True, stack_trace_interval_seconds=LONGEST_INTERVAL_SECONDS
    )
    block = diagnose(DiagnosticConfig(DebugConfig(traces)))
    block.__enter__()
    _enabled.append(block)


def disable_stack_trace_dumping(stack_trace_config: StackTraceConfig) -> None:
    """Undo the last `enable_stack_trace_dumping`, and restore the previous state; do nothing if there is none.

    Args:
        stack_trace_config: The argument of that call.
    """
    if _enabled:
        _enabled.pop().__exit__(None, None, None)


def user_signal_handler_wrapper(
    file_descriptor: IO[Any] | int, interval: float
) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that writes the header line, and the stack of the thread that it runs in.

    Within `diagnose` none is needed: SIGUSR1 dumps all threads there, also while Python cannot run.

    Args:
        file_descriptor: A file, or its descriptor.
        interval: Seconds, for the header line.
    """

    def user_signal_handler(unused_signum: int, unused_frame: FrameType | None) -> None:
        try:
            number = file_descriptor if isinstance(file_descriptor, int) else file_descriptor.fileno()
            if not isinstance(file_descriptor, int):
                file_descriptor.flush()
            os.write(number, header(interval).encode())
            faulthandler.dump_traceback(number, all_threads=False)
        except (OSError, ValueError):
            pass  # The file is closed: no reason to raise in the middle of the program.

    return user_signal_handler
