"""A run of this machine as it is sent to another control plane. Pure.

Only fields of the API are sent. FAILED of an attempt stays, whichever process reported it; another attempt makes the
run ACTIVE again.
"""

from __future__ import annotations

from google_cloud_mldiagnostics.control_plane import Change, Resource

__all__ = [
    "LOCAL_FIELDS",
    "as_cloud_run",
    "attempt_of",
    "failed",
    "failed_elsewhere",
    "is_sent_to_cloud",
    "mirrored",
    "numbered",
]

LOCAL_FIELDS = ("attempts", "createTime", "endTime", "errorDetails", "etag", "metrics", "state", "updateTime")
"""What a folder keeps beside what is sent: our own, and what a control plane sets itself."""


def as_cloud_run(run: Resource) -> Resource:
    """Return the fields that are sent of a run in a folder."""
    return {key: value for key, value in run.items() if key not in LOCAL_FIELDS}


def is_sent_to_cloud(session: Resource) -> bool:
    """Return True if a profiler session is sent to a control plane in the cloud: other machines can read its files.

    One on a disk of this machine is kept in the run's folder alone, until `mldiagnostics sync` brings it to a bucket.
    """
    folder = str(session.get("storageFolderUri") or "")
    return not folder or folder.startswith("gs://")


def mirrored(run: Resource) -> Change:
    """Return the change that makes a run at another control plane like the one in a folder.

    Args:
        run: As the folder has it.
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
        attempt: The number of the attempt that it is of; a later one is not concerned.
    """

    def change(kept: Resource) -> Resource | None:
        if kept.get("runPhase") == "FAILED" or attempt_of(kept) > attempt:
            return None
        return {**kept, "runPhase": "FAILED"}

    return change


def attempt_of(run: Resource) -> int:
    """Returns the number of the attempt that a run is in, by its labels."""
    text = str((run.get("labels") or {}).get("attempt", "1"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def numbered(run: Resource, attempt: int) -> Resource:
    """Returns the run in the attempt that it is known to be in."""
    return {**run, "labels": {**(run.get("labels") or {}), "attempt": str(attempt)}}


def failed_elsewhere(kept: Resource) -> Resource:
    """How a folder learns that a process on another machine has failed."""
    reason = "another process of the run has failed"
    attempts = kept.get("attempts") or []
    for attempt in attempts[-1:]:
        attempt |= {"phase": "FAILED", "reason": attempt.get("reason") or reason}
    return {**kept, "runPhase": "FAILED", "errorDetails": kept.get("errorDetails") or reason}
