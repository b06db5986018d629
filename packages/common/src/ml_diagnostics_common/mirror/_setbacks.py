"""Failures of the mirror's thread: the mirror refuses an object, does not answer, or is full."""

from __future__ import annotations

# `Backoff` imports it at the first failure: which may be that the program has too many files open to import anything.
import random  # noqa: F401
from pathlib import Path

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import MissingExtraError
from ml_diagnostics_common.failures import RemoteError, classify
from ml_diagnostics_common.guard import Counters, warn_once

__all__ = ["Setbacks", "code_of"]


class Setbacks:
    """Failures of a mirror: counted by code, explained to the user once, and each followed by a longer wait.

    Args:
        path: The mirror's path.
        journal: The folder in which the entries are kept meanwhile.
        counters: Counts failures as failed_CODE.
        backoff: How long to wait after a temporary failure; None for a second to a minute.
        access_backoff: How long to wait after a failure that a person must fix; None for one to ten minutes.
    """

    def __init__(
        self,
        path: str,
        journal: Path,
        counters: Counters,
        backoff: Backoff | None = None,
        access_backoff: Backoff | None = None,
    ) -> None:
        self._path, self._journal, self._counters = path, journal, counters
        self._backoff = backoff or Backoff(first_seconds=1.0, longest_seconds=60.0)
        self._access_backoff = access_backoff or Backoff(first_seconds=60.0, longest_seconds=600.0)

    def failed(self, error: Exception) -> float:
        """Record a failure; return the time until the next attempt, in seconds."""
        failure = classify(error)
        self._counters.add(f"failed_{code_of(error)}")
        self._explain(error, failure)
        is_temporary = failure.is_temporary and not isinstance(error, MissingExtraError)
        return (self._backoff if is_temporary else self._access_backoff).failed(failure.retry_after_seconds)

    def succeeded(self) -> None:
        """Have the next failure wait a short time first."""
        self._backoff.succeeded()
        self._access_backoff.succeeded()

    def _explain(self, error: Exception, failure: RemoteError) -> None:
        todo = ""
        if failure.access and self._path.startswith("gs://"):
            todo = (
                " Its account needs storage.objects.create on the bucket, which must exist: grant it "
                "roles/storage.objectUser, or roles/storage.objectCreator to let it only create objects."
            )
        warn_once(
            ("mirror", self._path, "access" if failure.access else "failure"),
            "The mirror %s cannot be written: %s.%s The job goes on. Its entries are kept in %s and tried again, every "
            "ten minutes in the end.",
            self._path,
            str(error).rstrip("."),
            todo,
            self._journal,
        )


def code_of(error: Exception) -> str:
    """Return the name under which a failure is counted."""
    return classify(error).code if not isinstance(error, MissingExtraError) else type(error).__name__
