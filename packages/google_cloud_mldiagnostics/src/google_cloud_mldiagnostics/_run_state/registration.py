"""Keep a run at a control plane equal to its folder on this machine, in a thread.

The folder is written first, and no call waits for the control plane. If that is slow, refuses or cannot be reached, one
WARNING is logged, and requests are repeated until the run has ended. `mldiagnostics sync`, or the next process that
registers a run there, reports the rest.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import CredentialsError
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.worker import Worker

from google_cloud_mldiagnostics._run_state.mirroring import RunCopy, is_sent_to_cloud
from google_cloud_mldiagnostics._run_state.unreported_runs import (
    UnreportedRuns,
    warn_end_not_reported,
    warn_not_reported,
    warn_session_not_kept,
)
from google_cloud_mldiagnostics.exceptions import (
    ControlPlaneClientNotInitializedError,
    ControlPlaneError,
)

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.control_plane import Connection, DistantControlPlane, Resource
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

__all__ = ["Registration"]

_MOST_SESSIONS: Final = 1000
_CONFIGS_SECONDS = 0.5
_DEBOUNCE_SECONDS = 0.2
_SEARCH_EVERY_SECONDS = 60.0
_SEARCH_FOR_SECONDS = 600.0
_LEAST_CALL_SECONDS = 0.5
_FIRST_ACCESS_SECONDS = 60.0
_UNRESPONSIVE_SECONDS = 0.5


class _End(NamedTuple):
    phase: str
    deadline: float


class Registration:
    """Report a run to a control plane in the cloud.

    Args:
        run_id: The run's id.
        local: The runs of this machine.
        connect: Finds the control plane; called in the thread. It raises if there is none. None to report nothing.
        is_owner: True if this process reports the run, like process 0. Others report profiles and their own failure.
        is_shared: True if another process that continues reports it too, so that this is not another attempt.
        on_found: Called in the thread with the result of `connect`.
        on_attempt: Called in the thread with the number that the control plane gives this attempt.
        on_settled: Called in the thread once it is known if there is a control plane and if it has the run; at the
            start if `connect` is None.
        backoff: The waits after temporary failures.
        access_backoff: The waits after failures that a user must fix.
    """

    def __init__(
        self,
        run_id: str,
        local: LocalControlPlane,
        connect: Callable[[], Connection] | None,
        *,
        is_owner: bool,
        is_shared: bool = False,
        on_found: Callable[[Connection], object] = lambda _: None,
        on_attempt: Callable[[int], object] = lambda _: None,
        on_settled: Callable[[], object] = lambda: None,
        backoff: Backoff | None = None,
        access_backoff: Backoff | None = None,
    ) -> None:
        self._run_id = run_id
        self._local = local
        self._connect = connect
        self._is_owner = is_owner
        self._is_shared = is_shared
        self._on_found = on_found
        self._on_attempt = on_attempt
        self._on_settled = on_settled
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._access_backoff = access_backoff or Backoff(_FIRST_ACCESS_SECONDS, 600.0)
        self._pid = os.getpid()
        self._worker = Worker("mldiagnostics-registration", self._do_what_is_due, idle_seconds=0.0)
        self._search_at = self._search_until = 0.0
        self._configs_collected = threading.Event()
        self._settled = threading.Event()
        self._done = threading.Event()
        self._connection: Connection | None = None
        self._unreported: UnreportedRuns | None = None
        self._copy: RunCopy | None = None
        self._is_behind = is_owner
        self._due_at = 0.0
        self._sessions: dict[str, Resource] = {}
        self._end: _End | None = None
        self._requested_end: _End | None = None
        self._is_all = False
        self._is_explained = False
        self.error: Exception | None = None
        """The reason why the control plane lacks the run's present state; None if it has that, or is not used."""

    # --- For other threads: no call waits, unless documented --------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._search_until = time.monotonic() + _SEARCH_FOR_SECONDS
        if self._connect is None or not self._worker.start():
            self._finish()

    def changed(self) -> None:
        """Report the run again, in the state of its folder."""
        self._put(self._note_change)

    def configs_are_collected(self) -> None:
        """Create the run with its configs, unless it was created before."""
        self._configs_collected.set()

    def put_session(self, session_id: str, session: Resource) -> None:
        """Store a profiler session, in the run's folder and at the control plane."""
        self._put(lambda: self._note_session(session_id, session))

    def end(self, phase: str, deadline: float) -> None:
        """Report the end of the run, after it was written to the folder; sessions may follow until `wait`.

        Args:
            phase: COMPLETED or FAILED.
            deadline: The time to stop trying, in monotonic seconds.
        """
        end = self._requested_end = _End(phase, deadline)
        self._mark_unreported()
        self._put(lambda: self._note_end(end))
        if self._connection is not None:
            # Do not wait for earlier requests, unless one creates the run.
            self._connection.plane.hurry(deadline - time.monotonic())

    def wait_until_settled(self, timeout_seconds: float) -> bool:
        """Wait until the control plane has or has refused the run, or there is none; False if that takes longer."""
        return self._settled.wait(timeout_seconds)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the end is reported; the last call of this object.

        Returns:
            False if that takes longer, or fails, after one WARNING.
        """
        deadline = time.monotonic() + timeout_seconds
        self._put(self._note_all)
        is_done = self._done.wait(min(_UNRESPONSIVE_SECONDS, timeout_seconds))
        is_sent = not is_done and not self._is_ending() and self._report_end_in_caller()
        is_done = is_done or is_sent or self._done.wait(max(0.0, deadline - time.monotonic()))
        if is_done:
            self._worker.drain(max(0.0, deadline - time.monotonic()))  # Sessions that arrived too late to be sent.
        is_behind = self._connection is not None and self._is_ending() and self._is_behind and not is_sent
        has_all = self._is_ending() and not self._is_behind and not self._sessions
        if ((is_done and not is_behind) or has_all) and self.error is None:
            return True
        self._warn_end_not_reported()
        return False

    @property
    def link(self) -> str:
        """The run's page at the control plane if that has the run, else its folder."""
        connection = self._connection
        is_there = self._copy is not None and self._copy.attempt is not None
        return connection.plane.link(self._run_id) if connection and is_there else self._local.link(self._run_id)

    @property
    def is_searching(self) -> bool:
        """True if there may be a control plane."""
        return self._connect is not None

    # --- The thread -----------------------------------------------------------------------------------

    def _put(self, function: Callable[[], object]) -> None:
        if not self._worker.put(function):  # No thread can be started any more.
            self._worker.attempt(function)

    def _do_what_is_due(self) -> float | None:
        if self._done.is_set() or os.getpid() != self._pid:
            return None
        try:
            seconds = self._connect_or_report()
        except Exception as error:  # A bug in this library may cost the registration, but never the job.
            self.error = error
            LOSSES.add(f"registration: {type(error).__name__}")
            self._explain(error)
            seconds = None
        if seconds is None:
            self._finish()
        return seconds

    def _connect_or_report(self) -> float | None:
        """Connect, then report what is due; return the seconds until the next report, None for never."""
        if self._connection is None and (self._search_at > time.monotonic() or not self._try_to_connect()):
            is_over = self._is_ending() or self._search_at > self._search_until
            return None if is_over else self._search_at - time.monotonic()
        self._worker.run_waiting()  # One request reports them together.
        if not self._is_over() and self._due_at <= time.monotonic():
            self._report()
        return None if self._is_over() else max(0.0, self._seconds_until_due())

    def _try_to_connect(self) -> bool:
        """Connect, at once and then every minute for ten; return False if there is no control plane yet."""
        self._search_at = time.monotonic() + _SEARCH_EVERY_SECONDS
        try:
            self._connection = None if self._connect is None else self._connect()
        except Exception as error:
            self.error = error
            if not isinstance(error, CredentialsError):  # The shipper of the run's entries reports that.
                self._explain(error)
            self._settle()
            return False
        self.error = None
        if self._connection is None:
            self._search_at = math.inf
            return False
        self._copy = RunCopy(
            self._run_id,
            self._local,
            self._connection.plane,
            is_owner=self._is_owner,
            is_shared=self._is_shared,
            on_attempt=self._on_attempt,
        )
        if self._is_owner and self._connection.address:
            self._unreported = UnreportedRuns(self._local, self._connection.address)
        self._on_found(self._connection)
        if self._is_owner:
            self._configs_collected.wait(_CONFIGS_SECONDS)
        else:
            self._settle()
        return True

    def _finish(self) -> None:
        """End; sessions that arrive from now on are kept in the run's folder alone."""
        self._settle()
        self._worker.run_waiting()
        self._done.set()
        if self._connection is not None:
            self._connection.plane.close()

    def _settle(self) -> None:
        if not self._settled.is_set():
            try:
                self._on_settled()
            except Exception as error:
                LOSSES.add(f"registration: {type(error).__name__}")
            self._settled.set()

    def _seconds_until_due(self) -> float:
        if not self._is_behind and not self._sessions:
            return _SEARCH_EVERY_SECONDS if self._end is None else self._end.deadline - time.monotonic()
        return self._due_at - time.monotonic()

    def _note_change(self) -> None:
        if self._is_owner and not self._is_behind:
            self._is_behind = True
            self._due_at = time.monotonic() + _DEBOUNCE_SECONDS

    def _note_session(self, session_id: str, session: Resource) -> None:
        if len(self._sessions) >= _MOST_SESSIONS and session_id not in self._sessions:
            LOSSES.add("session_not_reported")
            return
        self._put_here(session_id, session)
        if is_sent_to_cloud(session) and (self._connection is not None or self._connect is not None):
            self._sessions[session_id] = session
            if self.error is None:
                self._due_at = time.monotonic()

    def _note_end(self, end: _End) -> None:
        self._end = end
        self._mark_unreported()  # In case the control plane was found after `end`.
        self._is_behind = self._is_owner or end.phase == "FAILED"
        self._due_at = time.monotonic()  # Once more, also after a failure.

    def _note_all(self) -> None:
        self._is_all = True

    def _is_ending(self) -> bool:
        return self._end is not None

    def _is_over(self) -> bool:
        if self._end is None:
            return False
        is_reported = self._is_all and not self._is_behind and not self._sessions
        return is_reported or time.monotonic() + _LEAST_CALL_SECONDS >= self._end.deadline or self._due_at == math.inf

    def _report(self) -> None:
        """Report what is new; after a failure, set the time of the next attempt."""
        try:
            self._allow_seconds()
            if self._is_behind:
                if self._copy is not None:
                    self._copy.report(self._end.phase if self._end is not None else "")
                self._is_behind = False
                if self._end is not None:
                    self._unmark()
            self._report_sessions()
        except Exception as error:
            self._failed(error)
            return
        self.error = None
        self._is_explained = False
        self._backoff.succeeded()
        self._access_backoff.succeeded()
        self._settle()
        self._due_at = time.monotonic()
        self._report_other_runs()

    def _mark_unreported(self) -> None:
        """Leave a mark until the end is confirmed: the process may end before that."""
        if self._unreported is not None:
            self._unreported.add(self._run_id)

    def _unmark(self) -> None:
        if self._unreported is not None:
            self._unreported.remove(self._run_id)

    def _report_other_runs(self) -> None:
        """Once this run is registered, report the ends of earlier runs of this machine, in another thread."""
        is_registered = self._copy is not None and self._copy.attempt is not None
        if self._unreported is not None and is_registered and not self._is_end_requested():
            # At the end, `hurry` interrupts its waits as well, and the process does not wait for the thread.
            self._unreported.start_report(self._plane, self._is_end_requested)

    def _is_end_requested(self) -> bool:
        return self._requested_end is not None

    def _allow_seconds(self) -> None:
        """Limit a call to the time that the end of the process leaves."""
        if self._requested_end is not None:
            left = max(_LEAST_CALL_SECONDS, self._requested_end.deadline - time.monotonic())
            self._plane.call_seconds = min(self._plane.call_seconds, left)

    def _failed(self, error: Exception) -> None:
        self.error = error
        is_temporary = getattr(error, "is_temporary", False)
        # Hurried requests fail, and the end reports the same.
        if not (is_temporary and self._is_end_requested()):
            self._explain(error)
        self._settle()
        wait = (self._backoff if is_temporary else self._access_backoff).failed()
        self._due_at = math.inf if self._end is not None and not is_temporary else time.monotonic() + wait

    def _explain(self, error: Exception) -> None:
        self._is_explained = True
        warn_not_reported(self._run_id, self._local.link(self._run_id), error)

    def _warn_end_not_reported(self) -> None:
        end, connection = self._requested_end, self._connection
        if end is not None and connection is not None and not self._is_explained:
            warn_end_not_reported(self._run_id, end.phase, self.error, can_sync=bool(connection.address))

    # --- Reports ---------------------------------------------------------------------------------

    @property
    def _plane(self) -> DistantControlPlane:
        if self._connection is None:
            raise ControlPlaneClientNotInitializedError("the control plane was called before it was found")
        return self._connection.plane

    def _report_end_in_caller(self) -> bool:
        """Report the end in the caller's thread, since the worker's is in a request without a response."""
        copy, end = self._copy, self._requested_end
        if copy is None or end is None or (self._is_owner and copy.attempt is None):
            return False
        try:
            self._allow_seconds()
            copy.report_end(end.phase)
        except Exception as error:
            self.error = error
            return False
        self.error = None
        if self._is_owner:
            self._unmark()
        return True

    def _report_sessions(self) -> None:
        for session_id, session in list(self._sessions.items()):
            self._plane.put_session(self._run_id, session_id, session)
            del self._sessions[session_id]

    def _put_here(self, session_id: str, session: Resource) -> None:
        try:
            self._local.put_session(self._run_id, session_id, session)
        except ControlPlaneError as error:
            warn_session_not_kept(self._run_id, error)
