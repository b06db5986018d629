"""Convert a run of this machine for another control plane, and keep its copy there up to date.

Only fields of the API are sent. FAILED of an attempt stays, whichever process reported it; another attempt makes the
run ACTIVE again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ml_diagnostics_common.files import in_bucket

from google_cloud_mldiagnostics.exceptions import RunExistsError, RunNotFoundError

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.control_plane import Change, ControlPlane, Resource

__all__ = [
    "LOCAL_FIELDS",
    "RunCopy",
    "as_cloud_run",
    "attempt_of",
    "failed",
    "failed_elsewhere",
    "is_sent_to_cloud",
    "mirrored",
    "numbered",
]

LOCAL_FIELDS = ("attempts", "createTime", "endTime", "errorDetails", "etag", "metrics", "state", "updateTime")
"""The fields of a run in a folder that are not sent: our own, and those that a control plane sets itself."""


def as_cloud_run(run: Resource) -> Resource:
    """Return the fields that are sent of a run in a folder."""
    return {key: value for key, value in run.items() if key not in LOCAL_FIELDS}


def is_sent_to_cloud(session: Resource) -> bool:
    """Return True if a profiler session is sent to a control plane in the cloud: other machines can read its files.

    A session on a disk of this machine stays in the run's folder until `mldiagnostics sync` uploads it to a bucket.
    """
    folder = str(session.get("storageFolderUri") or "")
    return not folder or in_bucket(folder)


def mirrored(run: Resource) -> Change:
    """Return the change that makes a run at another control plane like the one in a folder.

    Args:
        run: The run as its folder has it.
    """
    sent = as_cloud_run(run)
    sent.pop("name", None)

    def change(kept: Resource) -> Resource | None:
        merged = {**kept, **sent}
        for field in ("configs", "labels"):
            merged[field] = {**(kept.get(field) or {}), **(sent.get(field) or {})}
        if kept.get("runPhase") == "FAILED" and attempt_of(kept) == attempt_of(run):
            merged["runPhase"] = "FAILED"
        return None if merged == kept else merged

    return change


def failed(attempt: int) -> Change:
    """Return the change by which a process other than the first reports its failure.

    Args:
        attempt: The number of its attempt; a later attempt is not changed.
    """

    def change(kept: Resource) -> Resource | None:
        if kept.get("runPhase") == "FAILED" or attempt_of(kept) > attempt:
            return None
        return {**kept, "runPhase": "FAILED"}

    return change


def attempt_of(run: Resource) -> int:
    """Return the number of a run's attempt, by its labels."""
    text = str((run.get("labels") or {}).get("attempt", "1"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def numbered(run: Resource, attempt: int) -> Resource:
    """Return the run with the number of its attempt."""
    return {**run, "labels": {**(run.get("labels") or {}), "attempt": str(attempt)}}


def failed_elsewhere(kept: Resource) -> Resource:
    """Return the folder's run as failed, because a process on another machine has failed."""
    reason = "another process of the run has failed"
    attempts = kept.get("attempts") or []
    for attempt in attempts[-1:]:
        attempt |= {"phase": "FAILED", "reason": attempt.get("reason") or reason}
    return {**kept, "runPhase": "FAILED", "errorDetails": kept.get("errorDetails") or reason}


class RunCopy:
    """The copy of a run at a control plane, which follows the run's folder.

    Args:
        run_id: The run's id.
        local: The runs of this machine.
        plane: The control plane.
        is_owner: True if this process reports the run; others report only their own failure.
        is_shared: True if another process that continues reports it too, so that this is not another attempt.
        on_attempt: Called with the number that the control plane gives this attempt.

    Attributes:
        attempt: The attempt's number; None until this process has registered the run.
    """

    def __init__(
        self,
        run_id: str,
        local: ControlPlane,
        plane: ControlPlane,
        *,
        is_owner: bool,
        is_shared: bool,
        on_attempt: Callable[[int], object],
    ) -> None:
        self.attempt: int | None = None
        self._run_id = run_id
        self._local = local
        self._plane = plane
        self._is_owner = is_owner
        self._is_shared = is_shared
        self._on_attempt = on_attempt

    def report(self, end_phase: str) -> None:
        """Update the copy to the state of the folder; create it or start another attempt first, if necessary.

        Args:
            end_phase: COMPLETED or FAILED; empty if the run has not ended.
        """
        if not self._is_owner:
            self.report_end(end_phase)
            return
        if self.attempt is None:
            self._register()
            return
        try:
            kept = self._plane.update_run(self._run_id, self._present_state(self.attempt))
        except RunNotFoundError:  # A user has deleted it.
            self._register()
            return
        if end_phase == "COMPLETED" and kept.get("runPhase") == "FAILED":
            self._local.update_run(self._run_id, failed_elsewhere)

    def report_end(self, end_phase: str) -> None:
        """Report the end, in one request; also while another thread is in `report`."""
        if self._is_owner:
            self._plane.update_run(self._run_id, self._present_state(self.attempt or 1))
        elif end_phase == "FAILED":
            self._plane.update_run(self._run_id, failed(attempt_of(self._local.get_run(self._run_id))))

    def _register(self) -> None:
        """Create the run, or start another attempt of an existing one."""
        run = self._local.get_run(self._run_id)
        try:
            number = attempt_of(self._plane.get_run(self._run_id)) + (0 if self._is_shared else 1)
        except RunNotFoundError:
            try:
                self._plane.create_run(self._run_id, {**as_cloud_run(run), "runPhase": "ACTIVE"})
                self._note_attempt(attempt_of(run))
                if run.get("runPhase") != "ACTIVE":  # The API creates active runs; this one has ended meanwhile.
                    self._plane.update_run(self._run_id, self._present_state(attempt_of(run)))
                return
            except RunExistsError:  # Another process created it after the check.
                number = attempt_of(run)
        # The control plane counts attempts, since this machine may be new.
        number = max(number, attempt_of(run))
        self._plane.update_run(self._run_id, self._present_state(number))
        self._note_attempt(number)

    def _present_state(self, attempt: int) -> Change:
        """Return the change to the folder's state at the time of the change, which may be after a conflict.

        An older state would revert an end that `report_end` has sent meanwhile.
        """
        return lambda kept: mirrored(numbered(self._local.get_run(self._run_id), attempt))(kept)

    def _note_attempt(self, number: int) -> None:
        self.attempt = number
        self._on_attempt(number)
