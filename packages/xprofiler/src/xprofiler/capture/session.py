"""A session, the folder with the files of one capture: its name and its reservation, and where each target writes.

A file is `<root>/<session>/<host>.xplane.pb`. A name is reserved, so that two captures in the same second do not share
one.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.errors import CommandError, NotFoundError
from ml_diagnostics_common.exceptions import ObjectNotFoundError, PreconditionFailedError, StorageError
from ml_diagnostics_common.failures import Kind, classify
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.storage import Storage

from xprofiler.capture.targets import Target, is_this_machine
from xprofiler.log_directory import XPLANE_SUFFIX

__all__ = ["Destination", "Session", "destinations_of", "reserved", "unused_name"]

_NAME: Final = "session_%Y_%m_%d_%H_%M_%S"
_MARK: Final = ".xprofiler-capture"


@dataclass(frozen=True)
class Session:
    """One capture.

    Attributes:
        root: The folder of sessions, which XProf and TensorBoard search.
        name: The session's name.
    """

    root: str
    name: str

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return f"{self.root}/{self.name}"

    def path_of(self, file_name: str) -> str:
        """Return the path of a host's file.

        Args:
            file_name: The name of the file, without `.xplane.pb`.
        """
        return f"{self.folder}/{file_name}{XPLANE_SUFFIX}"

    def below(self, root: str) -> Session:
        """Return the same session below another root, for staging."""
        return Session(root, self.name)


def unused_name(moment: time.struct_time, is_used: Callable[[str], bool]) -> str:
    """Return an unused session name. The later of two captures in one second gets the suffix `_2`.

    Args:
        moment: Now, in local time.
        is_used: Return True if a session of that name exists; may also reserve the name.
    """
    plain = time.strftime(_NAME, moment)
    name, number = plain, 1
    while is_used(name):
        number += 1
        name = f"{plain}_{number}"
    return name


@dataclass(frozen=True)
class Destination:
    """A folder that a target writes to.

    Attributes:
        root: The folder of sessions in the target's request.
        is_final: True if the file stays there; otherwise it is fetched from there.
    """

    root: str
    is_final: bool


def destinations_of(target: Target, session: Session, staging: str) -> tuple[Destination, Destination]:
    """Return the destination of a target, and the one to use if that fails.

    A job writes to a bucket itself, with its own service account, if it can. If we can run programs on its machine, it
    writes into a folder there instead. A folder of this machine can only be written from this machine.

    Args:
        target: The target.
        session: The session of the capture.
        staging: A folder for this capture alone: on this machine for a local target, otherwise on the target's machine.
    """
    final, staged = Destination(session.root, True), Destination(posixpath.join(staging, "profile"), False)
    is_in_cloud = in_bucket(session.root)
    if target.access is not None:
        return (final, staged) if is_in_cloud else (staged, staged)
    if is_in_cloud and is_this_machine(target.address):
        return (staged, staged)
    return (final, final)


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
        CredentialsError: The credentials are missing.
        StorageError: The storage does not answer, or the credentials do not permit listing the folder.
        CommandError: The local folder cannot be created.
    """
    if in_bucket(root):
        try:
            session = Session(root, unused_name(moment, lambda name: _is_taken(Session(root, name), storage)))
        except ObjectNotFoundError as error:
            raise NotFoundError(
                f"log directory {root}: the bucket does not exist; create it, or use another one"
            ) from error
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
