"""xprof(): a profile of what the program does between two of its lines.

    with xprof():
        train_step()

A trace is written to this machine first; from there it is moved, or uploaded by a thread, to where the run keeps its
profiles, is looked at, and is told as a session of the run. What fails costs a profile, and never the job.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import inspect
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from ml_diagnostics_common.guard import LOSSES, guarded_as, warn_once

from google_cloud_mldiagnostics.active_run import ActiveRun, active_run
from google_cloud_mldiagnostics.agreement import jax_processes
from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics.profiling.deliveries import Upload, deliveries_of_this_process, move, stage
from google_cloud_mldiagnostics.profiling.engines import Engine, engine_for
from google_cloud_mldiagnostics.profiling.places import Place, Way, place_of, scratch_folder, xplane_name
from google_cloud_mldiagnostics.profiling.sessions import SessionIds, checked_session_id
from google_cloud_mldiagnostics.profiling.telling import ACTIVE, FAILED, SUCCEEDED, HostsCheck, Session
from google_cloud_mldiagnostics.profiling.verification import problem_of, read_xplane

__all__ = ["Xprof", "finish_profiles"]

logger = logging.getLogger("google_cloud_mldiagnostics.profiling")

_Function = TypeVar("_Function", bound=Callable[..., Any])

EXIT_SECONDS = 30.0
"""How long the end of the process waits for profiles that are being uploaded; the rest stays on this machine."""
_LAST_LOOKS_SECONDS = 6.0


class Xprof:
    """Profiles a stretch of the program: `start()` and `stop()`, a context manager, or a decorator.

    One profile at a time: a start while another runs, anybody's, is a WARNING.

    Args:
        run: The run to which the profiles belong; None is the current one, looked up when a profile starts.
        process_index_list: The processes that are profiled; None is all. The others do nothing.
        session_id: The name of the session. None is one that all processes agree upon which start within two minutes.

    Raises:
        ProfilingError: An argument cannot be used.
    """

    def __init__(
        self,
        run: MLRun | None = None,
        process_index_list: Iterable[int] | None = None,
        session_id: str | None = None,
    ) -> None:
        if callable(run):
            raise ProfilingError("xprof was given a function: write @xprof(), with parentheses")
        self._run = run
        self._indexes = None if process_index_list is None else _checked_indexes(process_index_list)
        self._session_id = session_id
        self._capture: _Capture | None = None
        self._is_skipped = False
        self._entered: list[bool] = []

    def start(self, session_id: str | None = None) -> None:
        """Starts a profile.

        Args:
            session_id: The name of its session; None is that of the constructor.

        Raises:
            ProfilingError: There is no run, or it has no place for profiles. What else fails is a WARNING.
        """
        self._start(session_id)

    def stop(self) -> None:
        """Ends the profile and keeps it: in its place, if that is a disk of this machine, else a thread uploads it."""
        if self._is_skipped:
            self._is_skipped = False
        elif self._capture is None:
            logger.warning("xprof: stop() without a profile that was started; nothing is done.")
        else:
            capture, self._capture = self._capture, None
            _end(capture)

    def __enter__(self) -> Xprof:
        self._entered.append(self._start(None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entered.pop():
            self.stop()

    def __call__(self, function: _Function) -> _Function:
        """Returns the function, profiled whenever it is called; a coroutine or generator for as long as it runs."""

        def profile() -> Xprof:  # Of its own: calls may overlap, and the first ends its own.
            return Xprof(self._run, self._indexes, self._session_id)

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
        """Starts a profile; False if there is nothing that `stop` could end."""
        active = self._active()
        if active is None:
            return False
        place = place_of(active)
        if self._capture is not None or self._is_skipped:
            logger.warning("xprof: start() while a profile of this object runs; nothing is done.")
            return False
        return bool(self._begin(active, place, checked_session_id(session_id or self._session_id)))

    @guarded_as("start a profile")
    def _begin(self, active: ActiveRun, place: Place, session_id: str | None) -> bool:
        index, count = jax_processes() or (active.process_index, active.process_count)
        count = max(count, index + 1)  # Where nobody knows how many there are.
        expected = list(range(count)) if self._indexes is None else self._indexes
        if index not in expected:
            _session_ids(active).skip(session_id)
            logger.info("profiling_status: skipped. Process %d is not among %s.", index, expected)
            self._is_skipped = True
            return True
        self._capture = _begin(active, place, session_id, index, count, [i for i in expected if 0 <= i < count])
        return self._capture is not None

    def _active(self) -> ActiveRun | None:
        """The run to profile; None in a forked child, which has none."""
        active = active_run()
        if active is None:
            raise ProfilingError("there is no run to profile: call machinelearning_run first")
        if self._run is not None and self._run.name != active.run.name:
            raise ProfilingError(f"the run {self._run.name} has ended; the run of this process is {active.run.name}")
        if active.pid != os.getpid():
            warn_once("xprof in a child", "xprof: a forked process is not the run's, and takes no profiles.")
            return None
        return active


@dataclass
class _Capture:
    """A profile that runs."""

    session: Session
    place: Place
    engine: Engine
    scratch: Path
    pid: int
    started_seconds: float  # Monotonic.


_capture_of_this_process: _Capture | None = None
_is_capturing_in_this_process = False
_lock_of_this_process = threading.Lock()  # Held for an assignment.
_hosts_checks_of_this_process: list[HostsCheck] = []
_session_ids_of_this_process: dict[str, SessionIds] = {}


def finish_profiles(timeout_seconds: float = EXIT_SECONDS) -> bool:
    """Ends the profile that still runs, and waits for uploads: for the end of a run, or of the process.

    Args:
        timeout_seconds: How long to wait for uploads.

    Returns:
        Whether all are where they belong; those that are not wait on this machine for `mldiagnostics sync`.
    """
    capture = _capture_of_this_process
    if capture is not None and capture.pid == os.getpid():
        logger.info("Profile %s runs while the run ends: it is ended, too.", capture.session.session_id)
        _end(capture)
    is_delivered = deliveries_of_this_process().wait(timeout_seconds)
    if not is_delivered:
        logger.warning(
            "Profiles could not be uploaded within %g s. They wait on this machine: `mldiagnostics sync` uploads them.",
            timeout_seconds,
        )
    for check in _hosts_checks_of_this_process:
        deliveries_of_this_process().add(check.at_the_end, is_awaited=True)
    deliveries_of_this_process().wait(_LAST_LOOKS_SECONDS if is_delivered else 0.0)
    return is_delivered


def _checked_indexes(indexes: Iterable[int]) -> list[int]:
    try:
        return sorted({int(index) for index in indexes})
    except (TypeError, ValueError, OverflowError):
        raise ProfilingError(f"process_index_list is {indexes!r}: give indexes of processes, such as [0, 2]") from None


def _session_ids(active: ActiveRun) -> SessionIds:
    return _session_ids_of_this_process.setdefault(active.run.name, SessionIds(active.run.name))


def _begin(
    active: ActiveRun, place: Place, session_id: str | None, index: int, count: int, expected: list[int]
) -> _Capture | None:
    """Begins a profile; None, with a WARNING, if that fails."""
    global _capture_of_this_process
    now = datetime.datetime.now(datetime.timezone.utc)
    session_id = _session_ids(active).next(session_id, now)
    if not _take_turn():
        logger.warning("xprof: another profile of this process runs; %s is not taken.", session_id)
        return None
    engine: Engine | None = None
    session: Session | None = None
    scratch: Path | None = None
    is_tracing = False
    try:
        name = xplane_name(active, index, count)
        session = Session(
            active=active,
            session_id=session_id,
            kind="programmatic",
            folder=place.session(session_id),
            name=name,
            process_index=index,
            expected_hosts=len(expected),
            speaks=index == expected[0],
            started=now,
        )
        scratch = scratch_folder(active)
        engine = engine_for(active.run.framework)
        engine.start(scratch)
        is_tracing = True
        capture = _Capture(session, place, engine, scratch, os.getpid(), time.monotonic())
        _register_exit()
        _capture_of_this_process = capture
        logger.info("Profile %s has begun.", session_id)
        session.tell(ACTIVE)
        session.tell_control_plane([name], ACTIVE)
        return capture
    except Exception as error:
        LOSSES.add(f"xprof start: {type(error).__name__}")
        logger.warning("Profile %s could not be started (%s); the job goes on without.", session_id, _shown(error))
        if session is not None:
            session.tell(FAILED, f"could not be started: {_shown(error)}")
            session.tell_control_plane([session.name], FAILED)
        return None
    finally:
        if _capture_of_this_process is None or _capture_of_this_process.session is not session:
            if engine is not None and is_tracing:  # Interrupted.
                engine.abandon()
            _give_turn_back()
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)


@guarded_as("keep a profile")
def _end(capture: _Capture) -> None:
    """Ends a profile, once; the next one can begin whatever comes of this one."""
    global _capture_of_this_process
    if capture.pid != os.getpid():
        return  # A forked child's copy.
    with _lock_of_this_process:
        if _capture_of_this_process is not capture:
            return  # Ended already, by the end of the run.
        _capture_of_this_process = None
    session = capture.session
    try:
        try:
            file = capture.engine.stop(capture.scratch)
        except BaseException:
            capture.engine.abandon()
            raise
        finally:
            session.duration_seconds = time.monotonic() - capture.started_seconds
        _keep(capture, file)
    except Exception as error:
        LOSSES.add(f"xprof stop: {type(error).__name__}")
        logger.warning("Profile %s is lost (%s); the job goes on.", session.session_id, _shown(error))
        session.tell(FAILED, _shown(error))
        session.tell_control_plane([session.name], FAILED)
    finally:
        _give_turn_back()
        shutil.rmtree(capture.scratch, ignore_errors=True)


def _keep(capture: _Capture, file: Path) -> None:
    """Looks at a trace, and brings it on its way."""
    session, place = capture.session, capture.place
    if place.way is Way.STAGED:  # Perhaps a cloud was found meanwhile.
        place = place_of(session.active)
    xplane = read_xplane(file)
    session.size_bytes, session.planes = xplane.size_bytes, xplane.planes
    problem = problem_of(xplane, has_accelerator=capture.engine.has_accelerator())
    if problem:
        LOSSES.add("xprof: unusable profile")
        logger.warning("Profile %s of %s: %s.", session.session_id, session.name, problem)
    phase = FAILED if problem else SUCCEEDED
    file_name = f"{session.name}.xplane.pb"
    target = f"{session.folder}/{file_name}"

    def told(_: str = "") -> None:
        session.tell(phase, problem)
        logger.info("Profile %s: see it with `xprof --logdir %s`.", session.session_id, place.logdir)
        if problem:
            session.tell_control_plane([session.name], FAILED)
        elif session.speaks:
            check = HostsCheck(session)
            going_on = [other for other in _hosts_checks_of_this_process if not other.is_over]
            _hosts_checks_of_this_process[:] = [*going_on, check]
            deliveries_of_this_process().add(check, is_awaited=session.expected_hosts == 1)

    if place.way is Way.MOVED:
        try:
            move(file, Path(target))
            told()
            return
        except OSError:  # It waits like one for a network; what is wrong there is said at the first try.
            pass
    staged = place.staged_session(session.session_id) / file_name
    stage(file, staged, place.staging)
    if place.way is Way.STAGED:
        session.folder = str(staged.parent)
        session.tell(phase, problem)
        session.tell_control_plane([session.name], phase)
        logger.info(
            "Profile %s waits in %s: there is no cloud. `mldiagnostics sync %s` uploads it to %s.",
            session.session_id,
            session.folder,
            session.active.run.name,
            place.session(session.session_id),
        )
        return
    deliveries_of_this_process().add(Upload(staged, target, told), is_awaited=True)


def _take_turn() -> bool:
    global _is_capturing_in_this_process
    with _lock_of_this_process:
        if _is_capturing_in_this_process:
            return False
        _is_capturing_in_this_process = True
        return True


def _give_turn_back() -> None:
    global _is_capturing_in_this_process
    _is_capturing_in_this_process = False


@functools.cache
def _register_exit() -> None:
    atexit.register(_finish_at_exit, os.getpid())


def _finish_at_exit(pid: int) -> None:
    if pid == os.getpid():
        finish_profiles()


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"
