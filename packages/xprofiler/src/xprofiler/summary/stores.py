"""Where profiles are read from, with the credentials of the other commands; and a store's errors with exit codes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, StorageError
from ml_diagnostics_common.storage import Failure, Storage, failure_of, storage_for

from xprofiler.cloud.api import GoogleApi
from xprofiler.cloud.settings import GcloudSettings
from xprofiler.console import Console
from xprofiler.exceptions import NotFoundError, NotPermittedError, TimedOutError, UsageError

__all__ = ["store_for", "translated"]

_OURS: Final = {
    Failure.REFUSED: NotPermittedError,
    Failure.MISSING: NotFoundError,
    Failure.UNANSWERED: TimedOutError,
}


def store_for(path: str, deadline_seconds: float = 60.0) -> Storage:
    """Return the store of a path; of `gs://` by application default credentials, else by gcloud's login.

    Args:
        path: Local, or in Cloud Storage.
        deadline_seconds: After this long a call that gets no good answer is given up.

    Raises:
        ConfigurationError: It is of another scheme.
        NotPermittedError: There are no credentials.
    """
    if not path.startswith("gs://"):
        return storage_for(path)
    return _cloud_store(deadline_seconds, frozenset(os.environ.items()))


@functools.lru_cache(maxsize=8)
def _cloud_store(deadline_seconds: float, environ: frozenset[tuple[str, str]]) -> Storage:
    return _api(environ).storage_within(deadline_seconds)


@functools.lru_cache(maxsize=2)
def _api(environ: frozenset[tuple[str, str]]) -> GoogleApi:
    """One for all stores: gcloud takes most of a second to return a token."""
    return GoogleApi(GcloudSettings.load(dict(environ)), Console())


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
