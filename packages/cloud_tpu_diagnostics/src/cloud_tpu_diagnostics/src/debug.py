"""Functions of the public package that start and stop debugging: for programs that do not use `diagnose`."""

from __future__ import annotations

import signal
import threading

from ml_diagnostics_common.processes import handled_signals

from cloud_tpu_diagnostics._config import checked_interval
from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.diagnostic import diagnose
from cloud_tpu_diagnostics.src.stack_trace import disable_stack_trace_dumping, enable_stack_trace_dumping

__all__ = [
    "DebugConfig",
    "diagnose",
    "disable_stack_trace_dumping",
    "enable_stack_trace_dumping",
    "send_user_signal",
    "start_debugging",
    "stop_debugging",
]

# State of the process: the blocks that calls have entered, of which each call that stops leaves one.
_started: list[diagnose] = []
_stopped = threading.Event()


def start_debugging(debug_config: DebugConfig) -> None:
    """Enter a block of `diagnose`, until `stop_debugging`; prefer `with diagnose(...)`, which no exception leaves open.

    Args:
        debug_config: The data to collect; nothing if it has no configuration of stack traces, or that is off.

    Raises:
        ConfigurationError: It cannot be used.
    """
    _stopped.clear()
    block = diagnose(DiagnosticConfig(debug_config))
    block.__enter__()
    if _is_on(debug_config):
        _started.append(block)


def stop_debugging(debug_config: DebugConfig) -> None:
    """Leave the block that `start_debugging` has entered last, without waiting for the end of the interval.

    Args:
        debug_config: The argument of that call.
    """
    if _is_on(debug_config) and _started:
        _started.pop().__exit__(None, None, None)
    if not _started:
        _stopped.set()


def send_user_signal(stack_trace_interval_seconds: float) -> None:
    """Send SIGUSR1 to the main thread each interval, until `stop_debugging`: for a thread of the caller's own.

    Within `diagnose` none is needed: it dumps stacks each interval itself. While the process has no handler for
    SIGUSR1, which would end it then, nothing is sent.

    Args:
        stack_trace_interval_seconds: Seconds between two signals.

    Raises:
        ConfigurationError: It is not a number above zero.
    """
    interval = checked_interval(stack_trace_interval_seconds)
    while not _stopped.wait(min(interval, threading.TIMEOUT_MAX)):
        if _catches_user_signal():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _is_on(debug_config: DebugConfig) -> bool:
    traces, hangs = debug_config.stack_trace_config, debug_config.hang_config
    return bool((traces is not None and traces.collect_stack_trace) or (hangs is not None and hangs.enabled))


def _catches_user_signal() -> bool:
    try:
        return signal.SIGUSR1 in handled_signals()
    except OSError:  # A system without /proc: only a handler of Python's is known.
        return signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, signal.SIG_IGN)
