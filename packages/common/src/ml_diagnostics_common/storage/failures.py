"""Why a store could not do as it was asked, for whoever gives that an exit code, or another try."""

from __future__ import annotations

import enum
import sys

from ml_diagnostics_common.exceptions import CredentialsError, ObjectNotFoundError
from ml_diagnostics_common.storage.google_storage import is_transient, refusal_of_quota

__all__ = ["Failure", "failure_of"]


class Failure(enum.Enum):
    """Why."""

    REFUSED = "refused"
    """There are no credentials, or they may not do this."""
    MISSING = "missing"
    """There is no such object, file or bucket."""
    UNANSWERED = "unanswered"
    """There was no good answer in time."""
    OTHER = "other"


def failure_of(error: BaseException) -> Failure:
    """Returns why a call of a `Storage` failed.

    Args:
        error: What it has raised, or any other error.
    """
    cause = error.__cause__
    if refusal_of_quota(cause):
        return Failure.OTHER
    # Where Cloud Storage was not asked, its libraries are not loaded for this.
    if isinstance(cause, Exception) and "google.api_core" in sys.modules and is_transient(cause):
        return Failure.UNANSWERED
    status = getattr(cause, "code", None)  # Of google.api_core's exceptions, the HTTP status.
    if isinstance(error, CredentialsError) or status in (401, 403) or isinstance(cause, PermissionError):
        return Failure.REFUSED
    if isinstance(error, ObjectNotFoundError) or status == 404:
        return Failure.MISSING
    return Failure.OTHER
