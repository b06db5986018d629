"""Reservation of a session's name, so that two captures in the same second do not share one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.errors import CommandError, NotFoundError, NotPermittedError
from ml_diagnostics_common.exceptions import (
    CredentialsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.failures import Kind, classify
from ml_diagnostics_common.storage import Storage

from xprofiler.capture.session import Session, unused_name

__all__ = ["reserved"]

_MARK: Final = ".xprofiler-capture"


@contextlib.contextmanager
def reserved(root: str, storage: Storage, moment: time.struct_time) -> Iterator[Session]:
    """Yield a session that has no files yet and that no other capture uses.

    In a bucket, a marker object reserves the name until the end of the block. A local folder reserves it by itself, and
    is removed at the end if it is empty.

    Args:
        root: The folder of sessions: `gs://...`, or absolute.
        storage: The storage that holds it.
        moment: Now, in local time.

    Raises:
        NotFoundError: The bucket does not exist.
        NotPermittedError: The credentials are missing, or do not permit listing the folder.
        CommandError: The storage does not answer, or the folder cannot be created.
    """
    if root.startswith("gs://"):
        with _explained(root):
            session = Session(root, unused_name(moment, lambda name: _is_taken(Session(root, name), storage)))
        try:
            yield session
        finally:
            with contextlib.suppress(StorageError):
                storage.delete(_mark(session))
    else:
        session = Session(root, unused_name(moment, lambda name: not _makes(Path(root, name))))
        try:
            yield session
        finally:
            with contextlib.suppress(OSError):
                Path(session.folder).rmdir()


def _is_taken(session: Session, storage: Storage) -> bool:
    if storage.list_prefix(f"{session.folder}/"):
        return True
    try:
        storage.write(_mark(session), b"", if_generation=0)
    except PreconditionFailedError:
        return True
    except StorageError as error:
        if classify(error).kind is not Kind.REFUSED:
            raise
        # Read permission is enough: the jobs write, so continue without a marker.
    return False


def _mark(session: Session) -> str:
    return f"{session.folder}/{_MARK}"


def _makes(folder: Path) -> bool:
    """Create a folder; return False if it exists."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if folder.parent.is_dir():
            return False
        raise CommandError(f"cannot make {folder}: a part of it is a file; choose another log directory") from None
    except OSError as error:
        raise CommandError(f"cannot make {folder}: {error.strerror or error}; choose another log directory") from error
    return True


@contextlib.contextmanager
def _explained(root: str) -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as error:
        raise NotFoundError(
            f"log directory {root}: the bucket does not exist; create it, or use another one"
        ) from error
    except CredentialsError as error:
        raise NotPermittedError(str(error)) from error
    except StorageError as error:
        if classify(error).kind is Kind.REFUSED:
            raise NotPermittedError(str(error)) from error
        raise
