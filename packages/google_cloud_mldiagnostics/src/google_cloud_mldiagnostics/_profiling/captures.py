"""The profiles of this process, one at a time: start, end, and transfer to the destination.

A failure costs only the profile: the next one is still possible. The end of a run ends its open profile.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ml_diagnostics_common.guard import LOSSES, guarded_as, job_logger
from ml_diagnostics_common.process_hooks import at_exit_from_now, at_fork
from ml_diagnostics_common.worker import Worker, wait_until
from ml_diagnostics_common.xplane import read_xplane

from google_cloud_mldiagnostics._profiling.engines import Engine, engine_for
from google_cloud_mldiagnostics._profiling.locations import (
    TRACE_JSON_SUFFIX,
    Location,
    UploadMode,
    file_of,
    location_of,
    opening_command,
    scratch_folder,
    xplane_name,
)
from google_cloud_mldiagnostics._profiling.sessions import (
    ACTIVE,
    FAILED,
    SUCCEEDED,
    HostsCheck,
    Session,
    SessionIds,
    problem_of,
)
from google_cloud_mldiagnostics._profiling.uploads import Upload, deliveries_of_this_process, move, stage
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun

__all__ = [
    "EXIT_SECONDS",
    "Capture",
    "Captures",
    "Members",
    "captures_of_this_process",
    "end_profiles_of",
    "finish_profiles",
]

logger = job_logger("google_cloud_mldiagnostics.profiling")

EXIT_SECONDS: Final = 30.0
"""The limit of the wait, at the end of the process, for a profiler to stop, and then for uploads."""
_LAST_CHECKS_SECONDS: Final = 6.0
_OTHER_HOSTS_SECONDS: Final = 5.0
_MOST_REMEMBERED: Final = 1000


@dataclass(frozen=True)
class Members:
    """The processes that take a profile.

    Attributes:
        index: The index of this process in the run.
        count: The number of processes of the run.
        expected: The indexes of the processes that are profiled, in order.
    """

    index: int
    count: int
    expected: Sequence[int]


@dataclass
class Capture:
    """A profile that is being taken.

    Attributes:
        session: The profiler session.
        location: The destination of its files.
        engine: The profiler.
        scratch: The folder that the profiler writes to.
        started_seconds: The start, in monotonic seconds.
        trace_json: True if the trace is also kept as JSON.
        ending: Held by the thread that ends it, once.
        ended: Set when the profile is complete, or reported as lost.
    """

    session: Session
    location: Location
    engine: Engine
    scratch: Path
    started_seconds: float
    trace_json: bool = False
    ending: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)


class Captures:
    """The profiles that one process takes by `xprof`."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # Acquired without waiting: a thread that does not get it takes no profile.
        self._worker = Worker("mldiagnostics-profiler")
        self._current: Capture | None = None
        self._checks: list[HostsCheck] = []
        self._session_ids: dict[str, SessionIds] = {}
        self._folders: deque[str] = deque(maxlen=_MOST_REMEMBERED)

    @property
    def current(self) -> Capture | None:
        """The profile that is being taken, or is being ended."""
        return self._current

    def session_ids(self, active: ActiveRun) -> SessionIds:
        """Return the source of a run's session ids."""
        return self._session_ids.setdefault(active.run.name, SessionIds(active.run.name))

    def has_taken(self, folder: str) -> bool:
        """Return True if a folder belongs to one of the last sessions that this process took itself."""
        return folder in self._folders

    def take(
        self,
        active: ActiveRun,
        location: Location,
        session_id: str | None,
        members: Members,
        *,
        trace_json: bool = False,
    ) -> Capture | None:
        """Start a profile; None, with a WARNING, if that fails, or another one runs."""
        now = datetime.datetime.now(datetime.timezone.utc)
        session_id = self.session_ids(active).next(session_id, now)
        if not self._turn.acquire(blocking=False):
            logger.warning("xprof: another profile of this process runs; %s is not taken.", session_id)
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(self._turn.release)
            session = Session(
                active=active,
                session_id=session_id,
                kind="programmatic",
                folder=location.session(session_id),
                name=xplane_name(active, members.index, members.count),
                process_index=members.index,
                expected_hosts=len(members.expected),
                speaks=members.index == members.expected[0],
                started=now,
            )
            try:
                capture = self._start(session, location, undo)
            except Exception as error:
                LOSSES.add(f"xprof start: {type(error).__name__}")
                logger.warning(
                    "Profile %s could not be started (%s); the job continues without.", session_id, _shown(error)
                )
                session.report_failed(f"could not be started: {_shown(error)}")
                return None
            capture.trace_json = trace_json
            undo.pop_all()
            return capture

    def _start(self, session: Session, location: Location, undo: contextlib.ExitStack) -> Capture:
        """Start the engine and report it; add to `undo` what reverts the finished steps."""
        scratch = scratch_folder(session.active)
        undo.callback(shutil.rmtree, scratch, ignore_errors=True)
        engine = engine_for(session.active.run.framework)
        engine.start(scratch)
        undo.callback(engine.abandon)
        capture = Capture(session, location, engine, scratch, time.monotonic())
        at_exit_from_now(finish_profiles)
        self._worker.start()  # From Python 3.12 on, no thread can be started when the process exits.
        undo.callback(self._forget)
        self._folders.append(session.folder)
        self._current = capture
        logger.info("Profile %s has started.", session.session_id)
        session.record(ACTIVE)
        session.report([session.name], ACTIVE)
        return capture

    def _forget(self) -> None:
        self._current = None

    @guarded_as("keep a profile")
    def end(self, capture: Capture) -> None:
        """End a profile, once; the next one can start even if this one fails. A forked child's copy is ignored."""
        if capture is not self._current or not capture.ending.acquire(blocking=False):
            return
        session = capture.session
        try:
            try:
                file = capture.engine.stop(capture.scratch, trace_json=capture.trace_json)
            except BaseException:
                capture.engine.abandon()
                raise
            finally:
                session.duration_seconds = time.monotonic() - capture.started_seconds
            self._keep(capture, file)
        except BaseException as error:
            LOSSES.add(f"xprof stop: {type(error).__name__}")
            logger.warning("Profile %s is lost (%s); the job continues.", session.session_id, _shown(error))
            session.report_failed(_shown(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._forget()
            shutil.rmtree(capture.scratch, ignore_errors=True)
            capture.ended.set()
            self._turn.release()

    def _keep(self, capture: Capture, file: Path) -> None:
        """Check a trace, and move or upload it."""
        session, location = capture.session, capture.location
        if location.mode is UploadMode.STAGED:  # A cloud may have been found meanwhile.
            location = location_of(session.active)
        problem = _inspect(session, file, has_accelerator=capture.engine.has_accelerator())
        if capture.trace_json:
            _keep_json(capture, location)
        done = self._when_uploaded(session, location, problem)
        name = file_of(session.name)
        target = f"{session.folder}/{name}"
        if location.mode is UploadMode.MOVED:
            try:
                move(file, Path(target))
                done("")
                return
            except OSError:  # Stage it as if for a network; the first try reports the problem.
                pass
        staged = location.staged_session(session.session_id) / name
        stage(file, staged, location.staging)
        if location.mode is UploadMode.STAGED:
            _report_staged(session, location, staged.parent, problem)
        else:
            deliveries_of_this_process().add(Upload(staged, target, done), is_awaited=True)

    def _when_uploaded(self, session: Session, location: Location, problem: str) -> Callable[[str], None]:
        """Return a callback for the moment when the file is at its destination."""

        def done(_: str) -> None:
            session.record(FAILED if problem else SUCCEEDED, problem)
            logger.info("Profile %s: see it with `%s`.", session.session_id, opening_command(location.logdir))
            if problem:
                session.report([session.name], FAILED)
            elif session.speaks:
                check = HostsCheck(session)
                self._checks = [*(other for other in self._checks if not other.is_over), check]
                deliveries_of_this_process().add(check, is_awaited=session.expected_hosts == 1)

        return done

    def finish(self, timeout_seconds: float) -> bool:
        """See `finish_profiles`."""
        deadline = time.monotonic() + timeout_seconds
        capture = self._current
        is_kept = capture is None or self._end_within(capture, lambda: deadline - time.monotonic(), "the process")
        deliveries_of_this_process().end()
        is_delivered = deliveries_of_this_process().wait(timeout_seconds)
        if not is_delivered:
            logger.warning(
                "Profiles could not be uploaded at the end, in %g s at most. They wait on this machine: `mldiagnostics "
                "sync` uploads them.",
                timeout_seconds,
            )
        self._hurry_checks(_OTHER_HOSTS_SECONDS)
        deliveries_of_this_process().wait(_LAST_CHECKS_SECONDS if is_delivered else 0.0)
        return is_kept and is_delivered

    def end_with(self, active: ActiveRun, seconds_left: Callable[[], float]) -> None:
        """See `end_profiles_of`."""
        capture = self._current
        if capture is not None and capture.session.active is active:
            self._end_within(capture, seconds_left, "the run")
        deliveries = deliveries_of_this_process()
        if deliveries.wait_until_idle(seconds_left):
            self._hurry_checks(seconds_left())
            deliveries.wait_until_idle(seconds_left)

    def _end_within(self, capture: Capture, seconds_left: Callable[[], float], ending: str) -> bool:
        """End the profile of a run or process that ends; return False if its profiler does not stop in time."""
        if capture.ended.is_set():
            return False  # It was reported as lost: its profiler has not stopped yet.
        session = capture.session
        logger.info("Profile %s runs while %s ends: it is ended, too.", session.session_id, ending)
        # Its profiler may never return, or wait for the thread that a signal has interrupted.
        if not self._worker.put(functools.partial(self.end, capture)):  # No thread can be started any more.
            self.end(capture)
        if wait_until(capture.ended.is_set, seconds_left):
            return True
        capture.ended.set()
        LOSSES.add("xprof stop: timeout")
        problem = f"{ending} ended before its profiler had"
        session.report_failed(problem)
        logger.warning(
            "Profile %s is lost: %s. If its device does not hang, call stop() of the profile before.",
            session.session_id,
            problem,
        )
        return False

    def _hurry_checks(self, wait_seconds: float) -> None:
        """Report the hosts that have sent their file by then."""
        for check in self._checks:
            check.hurry(min(_OTHER_HOSTS_SECONDS, wait_seconds))
            deliveries_of_this_process().add(check, is_awaited=True)


# State of the process.
_captures = Captures()


def captures_of_this_process() -> Captures:
    """Return the captures of this process; a forked child has its own."""
    return _captures


def start_afresh() -> None:
    """Forget all captures: they are the parent's."""
    global _captures
    _captures = Captures()


at_fork(start_afresh)


def finish_profiles(timeout_seconds: float = EXIT_SECONDS) -> bool:
    """End a profile in progress, and wait for uploads; called at the end of the process.

    Args:
        timeout_seconds: The longest to wait for the profiler to stop, and then for uploads.

    Returns:
        True if all profiles are at their destination. `mldiagnostics sync` uploads the rest; a profile is lost if its
        profiler has not stopped.
    """
    return captures_of_this_process().finish(timeout_seconds)


def end_profiles_of(active: ActiveRun, seconds_left: Callable[[], float]) -> None:
    """End the profile of a run that ends, and wait a bounded time until it and others are uploaded and reported.

    Args:
        active: The run.
        seconds_left: Return the time that is left. A profile that cannot be ended by then is reported as failed.
    """
    captures_of_this_process().end_with(active, seconds_left)


def _inspect(session: Session, file: Path, *, has_accelerator: bool) -> str:
    """Store the size and planes of a trace; return its problem, or an empty text."""
    xplane = read_xplane(file)
    session.size_bytes, session.planes = xplane.size_bytes, xplane.planes
    problem = problem_of(xplane, has_accelerator=has_accelerator)
    if problem:
        LOSSES.add("xprof: unusable profile")
        logger.warning("Profile %s of %s: %s.", session.session_id, session.name, problem)
    return problem


@guarded_as("keep a trace as JSON")
def _keep_json(capture: Capture, location: Location) -> None:
    """Move or upload the trace as JSON beside the profile; its loss does not affect the profile."""
    file = next(iter(sorted(capture.scratch.rglob(f"*{TRACE_JSON_SUFFIX}"))), None)
    if file is None:
        logger.warning("Profile %s: its profiler wrote no %s.", capture.session.session_id, TRACE_JSON_SUFFIX)
        return
    name = capture.session.name + TRACE_JSON_SUFFIX
    if location.mode is UploadMode.MOVED:
        move(file, Path(capture.session.folder) / name)
        return
    staged = location.staged_session(capture.session.session_id) / name
    stage(file, staged, location.staging)
    if location.mode is not UploadMode.STAGED:
        upload = Upload(staged, f"{capture.session.folder}/{name}", lambda _: None)
        deliveries_of_this_process().add(upload, is_awaited=True)


def _report_staged(session: Session, location: Location, folder: Path, problem: str) -> None:
    session.folder = str(folder)
    phase = FAILED if problem else SUCCEEDED
    session.record(phase, problem)
    session.report([session.name], phase)
    logger.info(
        "Profile %s waits in %s: there is no cloud. `mldiagnostics sync %s` uploads it to %s.",
        session.session_id,
        session.folder,
        session.active.run.name,
        location.session(session.session_id),
    )


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"
