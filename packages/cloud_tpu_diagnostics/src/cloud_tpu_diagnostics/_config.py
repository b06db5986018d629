"""The checked configuration of a block, as it was when the block was entered."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import SimpleNamespace

from cloud_tpu_diagnostics.configuration import fast_fail_configuration, hang_configuration
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
from cloud_tpu_diagnostics.exceptions import ConfigurationError

__all__ = ["FAST_FAIL", "LONGEST_INTERVAL_SECONDS", "Plan", "checked_interval", "is_fast_fail_on", "plan_of"]

FAST_FAIL = "ML_DIAGNOSTICS_FAST_FAIL"
"""Environment variable: 1 turns fast-fail on, 0 off, whatever the configuration says."""

_LEAST_SECONDS = 0.01
LONGEST_INTERVAL_SECONDS = 1e9
"""Above it faulthandler's timer overflows."""


class Plan(SimpleNamespace):  # Defining a named tuple takes longer than everything else in this module.
    """The checked configuration.

    Attributes:
        is_collecting: True to collect stack traces; False to detect hangs only.
        to_cloud: True to write to a file, which is shipped; False to write to stderr.
        directory: The folder of the file; empty for the one that agents read.
        interval_seconds: The time between two snapshots.
        hangs: The configuration of hang detection; None if it is off.
        fast_fail: The configuration of fast-fail; None if it is off.
    """

    is_collecting: bool
    to_cloud: bool
    directory: str
    interval_seconds: float
    hangs: HangConfig | None
    fast_fail: FastFailConfig | None


def plan_of(
    traces: StackTraceConfig | None,
    hangs: HangConfig | None,
    directory: str | os.PathLike[str] | None = None,
    fast_fail: FastFailConfig | None = None,
) -> Plan:
    """Check the configuration of a block.

    Raises:
        ConfigurationError: It is not valid.
    """
    try:
        return _plan_of(traces, hangs, fast_fail, _checked_directory(directory))
    except (ConfigurationError, RecursionError):
        raise
    except Exception as error:
        raise ConfigurationError(
            f"diagnose() was given a configuration that cannot be used ({type(error).__name__}); give it dataclasses "
            "of cloud_tpu_diagnostics.configuration, with plain numbers in them"
        ) from error


def is_fast_fail_on(config: FastFailConfig | None) -> bool:
    """Return True if fast-fail is on, by the environment or a configuration.

    Raises:
        ConfigurationError: The variable is neither 0 nor 1.
    """
    value = os.environ.get(FAST_FAIL, "").strip()
    if value not in ("", "0", "1"):
        raise ConfigurationError(f"{FAST_FAIL} is {value!r}; set it to 1 (on) or 0 (off)")
    return value == "1" or (value == "" and config is not None and bool(config.enabled))


def _plan_of(
    traces: StackTraceConfig | None, hangs: HangConfig | None, fast_fail: FastFailConfig | None, directory: str
) -> Plan:
    if traces is None or not traces.collect_stack_trace:
        traces = StackTraceConfig(collect_stack_trace=False)
    plan = Plan(
        is_collecting=bool(traces.collect_stack_trace),
        to_cloud=bool(traces.stack_trace_to_cloud) or bool(directory),
        directory=directory,
        interval_seconds=checked_interval(traces.stack_trace_interval_seconds),
        hangs=replace(hang_configuration.checked(hangs)) if hangs is not None and hangs.enabled else None,
        fast_fail=_fast_fail_of(fast_fail),
    )
    if plan.fast_fail is not None and plan.fast_fail.hang and plan.hangs is None:
        raise ConfigurationError(
            "hang=True in a FastFailConfig needs hang detection: give the block a HangConfig(enabled=True)"
        )
    if plan.to_cloud or plan.hangs is not None or plan.fast_fail is not None:
        from ml_diagnostics_common.environment import configured_backend

        configured_backend()
    return plan


def _fast_fail_of(config: FastFailConfig | None) -> FastFailConfig | None:
    checked = None if config is None else replace(fast_fail_configuration.checked(config))
    return (checked or FastFailConfig(enabled=True)) if is_fast_fail_on(checked) else None


def _checked_directory(directory: str | os.PathLike[str] | None) -> str:
    """Return the real path of a folder of trace files; empty for None.

    Raises:
        ConfigurationError: It is not a path of this machine.
    """
    if directory is None:
        return ""
    path = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip() or "://" in path or "\0" in path:
        raise ConfigurationError(
            f"expected directory to be a folder of this machine, got {directory!r:.200}: stack traces are written to "
            "disk, and shipped from there"
        )
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111


def checked_interval(value: object) -> float:
    """Return a number of seconds that a timer accepts; an integer stays one, since the header line shows it.

    Raises:
        ConfigurationError: It is not a number above zero.
    """
    number = _number(value)
    if number is not None and math.isfinite(number) and number > 0:
        return max(_LEAST_SECONDS, min(LONGEST_INTERVAL_SECONDS, number))
    raise ConfigurationError(
        f"stack_trace_interval_seconds is {value!r}; give a number of seconds above zero, such as 600"
    )


def _number(value: object) -> float | None:
    """Return a plain number; None for anything else, also for a bool."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    from numbers import Integral, Real  # For NumPy's, which has loaded it.

    if not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)
