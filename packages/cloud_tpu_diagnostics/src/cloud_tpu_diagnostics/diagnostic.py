"""The functions that a job calls: a block in which faults and hangs leave stack traces, and reports of progress.

with diagnostic.diagnose(diagnostic_config):
    run_job(...)
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.exceptions import ConfigurationError

if TYPE_CHECKING:
    from cloud_tpu_diagnostics._collect.blocks import Block
    from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

__all__ = ["diagnose", "heartbeat"]

_FORK_WAITS_SECONDS = 10.0

# State of the process: held by the thread that imports `blocks`, and by one that forks; what that one has done; and
# whether forks call the functions at the end of this module.
_importing = _thread.RLock()
_forking = _thread._local()
_has_fork_hooks = False


class diagnose(ContextDecorator):  # noqa: N801 (it is called like a function)
    """Collect stack traces while the block runs: on faults, on a signal, and periodically.

        with diagnose(stack_traces=True, hangs=True):
            run_job(...)

        with diagnostic.diagnose(diagnostic_config):  # with all settings
            run_job(...)

    Blocks may be nested, and entered by any thread: the configuration of the first one applies until all are left.
    Leaving restores the previous signal handlers; it waits for nothing but a warning that is being logged, at most a
    second. Exceptions of the block pass through unchanged.

    Args:
        config: The data to collect, and its destination. Parts that are None or off do nothing, and so does None.
        stack_traces: True to collect stack traces. Without `directory` they go to stderr.
        hangs: True, or a configuration, to detect hangs.
        fast_fail: True, or a configuration, to end all processes of the job once one of them has failed.
        directory: The folder of this machine for files with stack traces, which are also shipped; not with a config.

    Raises:
        ConfigurationError: Both a config and keywords are given. On entering, if the configuration is not valid.
    """

    def __init__(
        self,
        config: DiagnosticConfig | None = None,
        *,
        stack_traces: bool = False,
        hangs: bool | HangConfig = False,
        fast_fail: bool | FastFailConfig = False,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if stack_traces or hangs or fast_fail or directory is not None:
            if config is not None:
                raise ConfigurationError("expected diagnose() to be given a config, or keywords; got both")
            config = _config_of(stack_traces, hangs, fast_fail)
        self._config = config
        self._directory = directory
        self._entered: list[Block] = []  # Several, if it decorates a recursive function.

    def __enter__(self) -> None:
        try:
            debug = self._config.debug_config if self._config is not None else None
            is_forced = os.environ.get("ML_DIAGNOSTICS_FAST_FAIL", "") not in ("", "0")
            if debug is None and not is_forced:
                return
            traces, hangs = (None, None) if debug is None else (debug.stack_trace_config, debug.hang_config)
            fast_fail = getattr(debug, "fast_fail_config", None)  # The public package's has none.
            is_on = (traces is not None and traces.collect_stack_trace) or (hangs is not None and hangs.enabled)
            if not (is_on or is_forced or (fast_fail is not None and fast_fail.enabled)):
                return
        except RecursionError:
            raise
        except Exception as error:
            raise _not_a_configuration(self._config, error) from None
        try:
            with _importing:
                _register_fork_hooks()
                from cloud_tpu_diagnostics._collect.blocks import Block
        except (ImportError, OSError) as error:  # Too many open files, for instance.
            _report(error)
            return
        block = Block()
        try:
            block.enter(traces, hangs, self._directory, fast_fail)
            self._entered.append(block)  # Only now: another thread that leaves this same object may take it.
        except BaseException as error:
            if block in self._entered:
                self._entered.remove(block)
            block.leave(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entered:
            self._entered.pop().leave(error)


def _config_of(stack_traces: bool, hangs: bool | HangConfig, fast_fail: bool | FastFailConfig) -> DiagnosticConfig:
    from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
    from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
    from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

    return DiagnosticConfig(
        DebugConfig(
            StackTraceConfig(collect_stack_trace=stack_traces),
            HangConfig(enabled=hangs) if isinstance(hangs, bool) else hangs,
            FastFailConfig(enabled=fast_fail) if isinstance(fast_fail, bool) else fast_fail,
        )
    )


def _report(error: Exception) -> None:
    try:
        from ml_diagnostics_common.guard import report_loss
    except (ImportError, OSError):
        return
    report_loss("diagnose", error, "collect stack traces")


def _not_a_configuration(config: object, error: Exception) -> ConfigurationError:
    try:
        what = f"{config!r:.200} ({error})"
    except Exception:
        what = f"something that cannot be shown ({type(error).__name__})"
    return ConfigurationError(
        f"diagnose() was given {what}; give it a DiagnosticConfig, with a DebugConfig in it, "
        "with a StackTraceConfig in that"
    )


def heartbeat(step: int | None = None, phase: str = "step") -> None:
    """Report that the job makes progress; a call costs about a microsecond, and nothing outside of a block.

    Args:
        step: The step that starts; None if the job has no steps.
        phase: The activity of the job: init, compile, data, step, sync (the wait for the devices at the end of a
            step), checkpoint, eval, other, wait (for something outside of the job, such as slices), or ended.
    """
    try:
        from ml_diagnostics_common.progress import publish
    except (ImportError, OSError):  # Too many open files, for instance; the next call may succeed.
        return
    publish(phase, step)


# --- Forks ----------------------------------------------------------------------------------------------

# Registered here, not where `blocks` is imported: a fork that waits for the end of that import has started, and calls
# only what was registered before it.


def _register_fork_hooks() -> None:
    """Have forks call the functions below, once."""
    global _has_fork_hooks
    if _has_fork_hooks:
        return
    # Forks call hooks in reverse order, ours before those of `process_hooks`: threads that hold our locks import
    # modules through it, never the reverse.
    from ml_diagnostics_common import process_hooks  # noqa: F401

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )
    _has_fork_hooks = True


def _before_fork() -> None:
    """Wait for the end of an import, since a child that is forked during it could never import it; then prepare."""
    until = time.monotonic() + _FORK_WAITS_SECONDS
    _forking.hooks = None
    _forking.has_lock = _importing.acquire(timeout=_FORK_WAITS_SECONDS)
    if _forking.has_lock:
        _forking.hooks = getattr(sys.modules.get("cloud_tpu_diagnostics._collect.blocks"), "FORK_HOOKS", None)
    if _forking.hooks is not None:
        _forking.hooks.before(until)


def _after_fork_in_parent() -> None:
    hooks = getattr(_forking, "hooks", None)  # None in a fork that started before the registration.
    try:
        if hooks is not None:
            hooks.after_in_parent()
    finally:
        if getattr(_forking, "has_lock", False):
            _forking.has_lock = False
            _importing.release()


def _after_fork_in_child() -> None:
    global _importing
    _importing = _thread.RLock()
    hooks = getattr(_forking, "hooks", None)
    if hooks is not None:
        hooks.after_in_child()


if "logging" in sys.modules:  # `process_hooks` imports it. In a program without it no thread is likely to fork yet.
    _register_fork_hooks()
