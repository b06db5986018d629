"""Collection of a host's profile: fetch it into the session, and check it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import IO, Final

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError, StorageError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.storage import LocalStorage, Parts, Storage
from ml_diagnostics_common.worker import in_parallel
from ml_diagnostics_common.xplane import Xplane, summary_of

from xprofiler.capture.outcomes import Outcome
from xprofiler.capture.session import Destination, Session
from xprofiler.capture.targets import Access, Target
from xprofiler.gcloud.processes import Programs

__all__ = ["Collector", "problem_of"]

_READ: Final = 'wc -c < "$1" && cat "$1"'
_REMOTE_SECONDS: Final = 600.0
_LOST: Final = b"discarding message"
"""Written by a kubectl that drops what arrives before it has set up all streams: a file is fetched once more.
https://github.com/kubernetes/kubernetes/pull/131203"""
_LONGEST_NUMBER: Final = 40
_IN_MEMORY: Final = 4  # Files at once: a file may have hundreds of megabytes, and is written in one piece.


@dataclass(frozen=True)
class Collector:
    """Collects the files of a session.

    Attributes:
        session: The session to fill.
        storage: The storage that holds the session.
        programs: Runs the programs that fetch files.
    """

    session: Session
    storage: Storage
    programs: Programs
    _in_memory: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_IN_MEMORY), repr=False, compare=False
    )

    def collect(self, written: Sequence[tuple[Target, Destination]]) -> list[Outcome]:
        """Check each target's file, fetch it if necessary, and return an outcome for each, in the same order."""
        collected = in_parallel(lambda one: self._collect(*one), written)
        return [
            _failed(target, one) if isinstance(one, Exception) else one
            for (target, _), one in zip(written, collected, strict=True)
        ]

    def without_partial_files(self, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
        """Remove the partial files of failed hosts: one such file makes the whole session unreadable for XProf.

        Args:
            outcomes: The outcomes by target name.

        Returns:
            The outcomes; a problem mentions the removal.
        """
        failed = [outcome for outcome in outcomes.values() if outcome.file_name and not outcome.has_file]
        removed = in_parallel(self._remove_partial, failed)
        cleared = {
            outcome.name: replace(outcome, problem=f"{outcome.problem} (removed)")
            for outcome, is_removed in zip(failed, removed, strict=True)
            if is_removed is True
        }
        return {**outcomes, **cleared}

    def _remove_partial(self, outcome: Outcome) -> bool:
        path = self.session.path_of(outcome.file_name)
        with suppress(ObjectNotFoundError, StorageError):
            if not summary_of(Parts(self.storage, path)).is_whole:
                self.storage.delete(path)
                return True
        return False

    def clean_up(self, staged: Sequence[tuple[Target, str]]) -> list[str]:
        """Remove the staging folders of targets, and return a message for each that could not be removed.

        Args:
            staged: Targets that we can run programs on, and the folder on each.
        """
        removed = in_parallel(lambda one: self._remove(*one), staged)
        return [
            f"{folder} on {target.name} may remain: {problem}"
            for (target, folder), problem in zip(staged, removed, strict=True)
            if problem
        ]

    def _collect(self, target: Target, destination: Destination) -> Outcome:
        path = self.session.path_of(target.file_name)
        if not destination.is_final:
            return self._bring(target, self.session.below(destination.root).path_of(target.file_name), path)
        try:
            xplane = summary_of(Parts(self.storage, path))
        except ObjectNotFoundError:
            return Outcome.of(target, problem=f"it reported success, but {path} does not exist{_advice(path)}")
        return Outcome.of(target, xplane, problem_of(xplane, path))

    def _bring(self, target: Target, source: str, path: str) -> Outcome:
        with TemporaryFile() as file:
            if target.access is not None:
                self._fetch(target, target.access, source, file)
            with self._in_memory:
                data = file.read() if target.access is not None else LocalStorage().read(source)
                xplane = summary_of(data)
                problem = problem_of(xplane, source)
                if not problem:
                    self.storage.write(path, data)
        return Outcome.of(target, xplane, problem)

    def _fetch(self, target: Target, access: Access, path: str, file: IO[bytes]) -> None:
        """Copy a file of a target into ours, and seek to the start of its content, after the line with its size."""
        argv = access.execute(["sh", "-c", _READ, "sh", path])
        ended = self.programs.run(argv, stdout=file, timeout_seconds=_REMOTE_SECONDS)
        if _LOST in ended.errors:
            file.seek(0)
            file.truncate()
            ended = self.programs.run(argv, stdout=file, timeout_seconds=_REMOTE_SECONDS)
        file.seek(0)
        size = file.readline(_LONGEST_NUMBER).strip()
        if ended.exit_code or not size.isdigit():
            raise CommandError(f"cannot fetch {path} from {target.name}: {ended.complaint}")
        received = os.fstat(file.fileno()).st_size - file.tell()
        if received != int(size):
            raise CommandError(
                f"{path} of {target.name} is incomplete: received {received} of {int(size)} bytes; try again"
            )

    def _remove(self, target: Target, folder: str) -> str:
        assert target.access is not None
        ended = self.programs.run(target.access.execute(["rm", "-rf", folder]), timeout_seconds=_REMOTE_SECONDS)
        return ended.complaint if ended.exit_code else ""


def _advice(path: str) -> str:
    if in_bucket(path):
        return ""
    return "; it may have written to its own machine: use gs://bucket/path, or a folder that both share"


def _failed(target: Target, error: Exception) -> Outcome:
    if not isinstance(error, DiagnosticsError):
        raise error
    return Outcome.of(target, problem=str(error))


def problem_of(xplane: Xplane, path: str) -> str:
    """Return what is wrong with a file; empty if nothing is."""
    if not xplane.size_bytes:
        return f"its file is empty: {path}"
    if not xplane.is_whole:
        return f"its file is truncated, or not a profile: {path}"
    return ""
