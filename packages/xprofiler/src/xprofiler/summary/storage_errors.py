"""What a store says, as the error that has the right exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, ObjectNotFoundError, StorageError

from xprofiler.exceptions import NotFoundError, NotPermittedError, UsageError

__all__ = ["translated"]


@contextmanager
def translated() -> Iterator[None]:
    """Turns the errors of `storage` into ours; what has no exit code of its own passes.

    Raises:
        UsageError: It cannot be a path.
        NotFoundError: There is no such object or bucket.
        NotPermittedError: There are no credentials, or they may not do this.
    """
    try:
        yield
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    except CredentialsError as error:
        raise NotPermittedError(str(error)) from error
    except StorageError as error:
        code = getattr(error.__cause__, "code", None)  # Of google.api_core's exceptions, the HTTP status.
        if code in (401, 403) or isinstance(error.__cause__, PermissionError):
            raise NotPermittedError(str(error)) from error
        if code == 404 or isinstance(error, ObjectNotFoundError):
            raise NotFoundError(str(error)) from error
        raise
