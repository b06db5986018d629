"""A session's name, taken so that two captures of one second do not share it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ml_diagnostics_common.exceptions import (
    CredentialsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.storage import Failure, Storage, failure_of

from xprofiler.capture.session import Session, unused_name
from xprofiler.exceptions import NotFoundError, NotPermittedError, XprofilerError

__all__ = ["reserved"]

_MARK: Final = ".xprofiler-capture"


@contextlib.contextmanager
def reserved(root: str, storage: Storage, moment: time.struct_time) -> Iterator[Session]:
    """Yields a session of which nothing is there yet, and nobody else's.

    In a bucket an object holds its place until the end; a folder of this machine does so by itself, and is removed if
    it is still empty then.

    Args:
        root: The folder of sessions: `gs://...`, or absolute.
        storage: In which that is.
        moment: Now, in local time.

    Raises:
        NotFoundError: There is no such bucket.
        NotPermittedError: Without credentials, or with these, nobody can look at what is there.
        XprofilerError: The storage cannot be asked, or the folder not be made.
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
        if failure_of(error) is not Failure.REFUSED:
            raise
        # Whoever may only look goes without: the jobs write, not we.
    return False


def _mark(session: Session) -> str:
    return f"{session.folder}/{_MARK}"


def _makes(folder: Path) -> bool:
    """Makes a folder; False if there is one."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if folder.parent.is_dir():
            return False
        raise XprofilerError(f"cannot make {folder}: a part of it is a file; choose another log directory") from None
    except OSError as error:
        raise XprofilerError(
            f"cannot make {folder}: {error.strerror or error}; choose another log directory"
        ) from error
    return True


@contextlib.contextmanager
def _explained(root: str) -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as error:
        raise NotFoundError(f"log directory {root}: there is no such bucket; create it, or give another one") from error
    except CredentialsError as error:
        raise NotPermittedError(str(error)) from error
    except StorageError as error:
        if failure_of(error) is Failure.REFUSED:
            raise NotPermittedError(str(error)) from error
        raise
