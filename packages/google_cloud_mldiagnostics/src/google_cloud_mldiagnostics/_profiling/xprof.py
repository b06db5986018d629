"""xprof(): profile a part of the program.

    with xprof():
        train_step()

A trace is written to this machine first. It is checked, moved or uploaded to the run's path for profiles, and reported
as a session of the run: see `captures`. A failure may cost a profile, but never the job.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, cast

from ml_diagnostics_common.agreement import jax_processes
from ml_diagnostics_common.guard import guarded_as, job_logger, warn_once

from google_cloud_mldiagnostics._profiling.captures import Capture, Members, captures_of_this_process
from google_cloud_mldiagnostics._profiling.locations import Location, location_of
from google_cloud_mldiagnostics._profiling.sessions import checked_session_id
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, active_run
from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.mlrun_types import MLRun

__all__ = ["Xprof"]

logger = job_logger("google_cloud_mldiagnostics.profiling")

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Xprof:
    """Profile a part of the program: `start()` and `stop()`, a context manager, or a decorator.

    Only one profile is taken at a time: starting another one meanwhile logs a WARNING.

    Args:
        run: The run to which the profiles belong; None is the current one, looked up when a profile starts.
        process_index_list: The processes that are profiled; None is all. The others do nothing.
        session_id: The name of the session. None selects one on which all processes that start within two minutes
            agree.
        trace_json: True to keep the trace as `<host>.trace.json.gz`, too, for chrome://tracing and Perfetto. Writing it
            takes several times as long as the profile alone. None reads ML_DIAGNOSTICS_TRACE_JSON.

    Raises:
        ProfilingError: An argument cannot be used.
    """

    def __init__(
        self,
        run: MLRun | None = None,
        process_index_list: Iterable[int] | None = None,
        session_id: str | None = None,
        trace_json: bool | None = None,
    ) -> None:
        if callable(run):
            raise ProfilingError("xprof was given a function: write @xprof(), with parentheses")
        self._run = run
        self._indexes = None if process_index_list is None else _checked_indexes(process_index_list)
        self._session_id = session_id
        self._trace_json = trace_json
        self._capture: Capture | None = None
        self._is_skipped = False
        self._entered: list[bool] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles have: the settings, not a profile that is being taken."""
        return {**vars(self), "_capture": None, "_is_skipped": False, "_entered": []}

    def start(self, session_id: str | None = None) -> None:
        """Start a profile.

        Args:
            session_id: The name of the session; None for the constructor's.

        Raises:
            ProfilingError: There is no run, or it has no path for profiles. Any other failure is a WARNING.
        """
        self._start(session_id)

    def stop(self) -> None:
        """End the profile and keep it: at its destination on a disk of this machine, else a thread uploads it."""
        if self._is_skipped:
            self._is_skipped = False
        elif self._capture is None:
            logger.warning("xprof: stop() without a profile that was started; nothing is done.")
        else:
            capture, self._capture = self._capture, None
            captures_of_this_process().end(capture)

    def _ensure_initialized(self) -> None:
        """Check that there is a run with a path for profiles. AXLearn calls it before it profiles.

        Raises:
            ProfilingError: There is no run, or it has no path for profiles.
        """
        active = self._active()
        if active is not None:
            location_of(active)

    def __enter__(self) -> Xprof:
        self._entered.append(self._start(None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entered.pop():
            self.stop()

    def __call__(self, function: _Function) -> _Function:
        """Return the function, profiled at each call; a coroutine or generator for as long as it runs."""

        def profile() -> Xprof:  # A profile per call: calls may overlap, and each ends its own.
            return Xprof(self._run, self._indexes, self._session_id, self._trace_json)

        wrapper: Callable[..., Any]
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
                with profile():
                    return await function(*args, **kwargs)

            wrapper = call_coroutine
        elif inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def call_async_generator(*args: Any, **kwargs: Any) -> Any:
                with profile():
                    async for item in function(*args, **kwargs):
                        yield item

            wrapper = call_async_generator
        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def call_generator(*args: Any, **kwargs: Any) -> Any:
                with profile():
                    return (yield from function(*args, **kwargs))

            wrapper = call_generator
        else:

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                with profile():
                    return function(*args, **kwargs)

            wrapper = call
        return cast(_Function, wrapper)

    def _start(self, session_id: str | None) -> bool:
        """Start a profile; return False if none was started."""
        active = self._active()
        if active is None:
            return False
        location = location_of(active)
        if self._capture is not None or self._is_skipped:
            logger.warning("xprof: start() while a profile of this object runs; nothing is done.")
            return False
        return bool(self._take(active, location, checked_session_id(session_id or self._session_id)))

    @guarded_as("start a profile")
    def _take(self, active: ActiveRun, location: Location, session_id: str | None) -> bool:
        index, count = jax_processes() or (active.process_index, active.process_count)
        count = max(count, index + 1)  # The number of processes may be unknown.
        expected = list(range(count)) if self._indexes is None else self._indexes
        if index not in expected:
            captures_of_this_process().session_ids(active).skip(session_id)
            logger.info("profiling_status: skipped. Process %d is not among %s.", index, expected)
            self._is_skipped = True
            return True
        members = Members(index, count, [one for one in expected if 0 <= one < count])
        trace_json = self._trace_json
        if trace_json is None:
            trace_json = os.environ.get("ML_DIAGNOSTICS_TRACE_JSON", "").strip().lower() in ("1", "true", "yes", "on")
        captures = captures_of_this_process()
        self._capture = captures.take(active, location, session_id, members, trace_json=trace_json)
        return self._capture is not None

    def _active(self) -> ActiveRun | None:
        """Return the run to profile; None in a forked child, which has none."""
        active = active_run()
        if active is None:
            raise ProfilingError("there is no run to profile: call machinelearning_run first")
        if self._run is not None and self._run.name != active.run.name:
            raise ProfilingError(f"the run {self._run.name} has ended; the run of this process is {active.run.name}")
        if active.pid != os.getpid():
            warn_once("xprof in a child", "xprof: a forked process is not the run's, and takes no profiles.")
            return None
        return active


def _checked_indexes(indexes: Iterable[int]) -> list[int]:
    try:
        return sorted({int(index) for index in indexes})
    except (TypeError, ValueError, OverflowError):
        raise ProfilingError(f"process_index_list is {indexes!r}: give indexes of processes, such as [0, 2]") from None
