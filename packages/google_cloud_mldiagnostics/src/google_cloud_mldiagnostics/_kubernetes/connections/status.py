"""The status of an object after its capture: from the results of its pods. No clock, no network.

Empty texts are left out: some API servers refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.files import in_bucket

from google_cloud_mldiagnostics._kubernetes.connections.resource import CaptureStatus, Connection, Phase

__all__ = ["PodResult", "finished_status", "pending_status", "refused_status", "running_status"]

_MOST_PODS: Final = 10
_MOST_BYTES: Final = 4096


class PodResult(NamedTuple):
    """The result of one pod.

    Attributes:
        pod: Its name.
        problem: Why it has no profile; empty if it has one.
        is_verified: True if its file was read and is whole, False if it cannot be read from here.
    """

    pod: str
    problem: str = ""
    is_verified: bool = True


def pending_status(message: str) -> dict[str, Any]:
    """Return the status of an object that waits.

    Args:
        message: The reason.
    """
    return {"phase": Phase.PENDING.value, "message": message}


def running_status(connection: Connection, now: str) -> dict[str, Any]:
    """Return the status of an object that is claimed.

    Args:
        connection: The object.
        now: The time, as RFC 3339.
    """
    pods = len(connection.capture.pods) if connection.capture else 0
    return {"phase": Phase.RUNNING.value, "message": f"profiling {_count(pods)}", "startTime": now}


def refused_status(message: str, now: str) -> dict[str, Any]:
    """Return the status of an object that cannot be captured.

    Args:
        message: Why.
        now: The time, as RFC 3339.
    """
    result = {"status": CaptureStatus.FAILED.value, "errorMessage": _limited([message])}
    return {
        "phase": Phase.FAILED.value,
        "message": _limited([message]),
        "completionTime": now,
        "captureResult": result,
        "conditions": [_condition("Captured", "False", "Refused", now)],
    }


def finished_status(connection: Connection, results: Sequence[PodResult], now: str) -> dict[str, Any]:
    """Return the status of an object after its capture: Succeeded only if each pod has a profile.

    Args:
        connection: The object.
        results: The results of all its pods.
        now: The time, as RFC 3339.
    """
    failed = [result for result in results if result.problem]
    captured = len(results) - len(failed)
    is_whole = bool(results) and not failed
    is_verified = is_whole and all(result.is_verified for result in results)
    message = f"{captured} of {_count(len(results))} profiled"
    result: dict[str, Any] = {"status": CaptureStatus.SUCCEEDED.value}
    if failed:
        result = {
            "status": CaptureStatus.FAILED.value,
            "errorMessage": _limited([f"{each.pod}: {each.problem}" for each in failed]),
        }
    elif not is_verified:
        message += f"; {_unverified(connection)}"
        result = {"status": CaptureStatus.UNKNOWN.value}
    if captured and connection.capture is not None:
        result["outputLocation"] = f"{connection.capture.folder}/{connection.session}"
    return {
        "phase": (Phase.SUCCEEDED if is_whole else Phase.FAILED).value,
        "message": message,
        "completionTime": now,
        "captureResult": result,
        "conditions": [
            _condition("Captured", str(is_whole), "Captured" if is_whole else "PodsFailed", now),
            _condition("Verified", *_verification(is_whole=is_whole, is_verified=is_verified), now),
        ],
    }


def _unverified(connection: Connection) -> str:
    if connection.capture is not None and in_bucket(connection.capture.location):
        return "no file was read: grant the operator's service account roles/storage.objectViewer on the bucket"
    return "no file was read: the folder is not on the operator's disk"


def _verification(*, is_whole: bool, is_verified: bool) -> tuple[str, str]:
    if is_verified:
        return "True", "FilesWhole"
    return ("Unknown", "FilesNotReadable") if is_whole else ("False", "PodsFailed")


def _condition(kind: str, status: str, reason: str, now: str) -> Mapping[str, str]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": now}


def _count(pods: int) -> str:
    return "1 pod" if pods == 1 else f"{pods} pods"


def _limited(lines: Sequence[str]) -> str:
    """Return up to ten lines and 4 KiB of them, and how many more there are."""
    shown: list[str] = []
    size_bytes = 0
    for line in lines[:_MOST_PODS]:
        text = line.encode()[:_MOST_BYTES].decode(errors="ignore")
        size_bytes += len(text.encode()) + 1
        if size_bytes > _MOST_BYTES and shown:
            break
        shown.append(text)
    more = len(lines) - len(shown)
    return "\n".join([*shown, f"and {more} more"] if more else shown)
