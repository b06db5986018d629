"""What a store says, as the error that has the right exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, StorageError
from ml_diagnostics_common.storage import Failure, failure_of

from xprofiler.exceptions import NotFoundError, NotPermittedError, TimedOutError, UsageError

__all__ = ["translated"]

_OURS: Final = {
    Failure.REFUSED: NotPermittedError,
    Failure.MISSING: NotFoundError,
    Failure.UNANSWERED: TimedOutError,
}


@contextmanager
def translated() -> Iterator[None]:
    """Turns the errors of `storage` into ours; what has no exit code of its own passes.

    Raises:
        UsageError: It cannot be a path.
        NotFoundError: There is no such object or bucket.
        NotPermittedError: There are no credentials, or they may not do this.
        TimedOutError: There was no good answer in time.
    """
    try:
        yield
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    except (CredentialsError, StorageError) as error:
        ours = _OURS.get(failure_of(error))
        if ours is None:
            raise
        raise ours(str(error)) from error
