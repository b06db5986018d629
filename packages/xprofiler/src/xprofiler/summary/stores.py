"""The storage of profiles, with the credentials of the other commands, and with errors that have exit codes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import (
    CommandError,
    UsageError,
    class_of,
)
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, StorageError
from ml_diagnostics_common.storage import Storage, storage_for

from xprofiler.cloud.api import GoogleApi
from xprofiler.cloud.settings import GcloudSettings

__all__ = ["store_for", "translated"]


def store_for(path: str, deadline_seconds: float = 60.0) -> Storage:
    """Return the storage of a path. For `gs://`, use application default credentials, otherwise gcloud's login.

    Args:
        path: A local path, or one in Cloud Storage.
        deadline_seconds: The deadline of a call, including retries.

    Raises:
        ConfigurationError: The path has another scheme.
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
    """Return the API client that all storages share, since gcloud needs 0.5 to 0.8 s for a token."""
    return GoogleApi(GcloudSettings.load(dict(environ)), Console())


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the storage as ours. Errors without an exit code of their own are not changed.

    Raises:
        UsageError: The path is not valid.
        NotFoundError: The object or bucket does not exist.
        NotPermittedError: There are no credentials, or they lack a permission.
        TimedOutError: The storage did not answer in time.
    """
    try:
        yield
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    except (CredentialsError, StorageError) as error:
        ours = class_of(error)
        if ours is CommandError:
            raise
        raise ours(str(error)) from error
