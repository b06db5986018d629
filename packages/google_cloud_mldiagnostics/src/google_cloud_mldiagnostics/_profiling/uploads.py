"""How the file of a profile comes to its place: moved on this machine, or uploaded from where it waits."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.storage import storage_for

from google_cloud_mldiagnostics._profiling.deliveries import deliveries_of_this_process
from google_cloud_mldiagnostics._profiling.locations import SUFFIX

__all__ = ["Upload", "move", "stage"]

_REQUEST_DEADLINE_SECONDS: Final = 120.0
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS: Final = 600.0
_MOST_WAITING = 100


class Upload:
    """Brings a staged file to its place, however long the place cannot be reached; the file stays until it is there.

    Args:
        file: The staged file.
        target: Where it goes.
        when_done: Called when it is there, or when trying is of no use: with what is wrong, or nothing.
    """

    def __init__(self, file: Path, target: str, when_done: Callable[[str], None]) -> None:
        self._file = file
        self._target = target
        self._when_done = when_done
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)

    def __call__(self) -> float | None:
        """Tries once."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:  # `mldiagnostics sync` was faster.
            self._when_done("")
            return None
        deliveries = deliveries_of_this_process()
        try:
            deadline_seconds = min(_REQUEST_DEADLINE_SECONDS, deliveries.seconds_left())
            storage_for(self._target, deadline_seconds=deadline_seconds).write(self._target, data)
        except DiagnosticsError as error:
            LOSSES.add(f"profile upload: {type(error).__name__}")
            warn_once(
                ("profile upload", type(error)),
                "A profile could not be brought to its place (%s). It waits in %s; it is tried again while this "
                "process lives, and `mldiagnostics sync` uploads it later.",
                error,
                self._file,
            )
            if deliveries.is_ending:
                deliveries.give_up()
                return None
            return self._backoff.failed(None)
        del data
        self._file.unlink(missing_ok=True)
        _remove_if_empty(self._file.parent)
        self._when_done("")
        return None


def move(source: Path, target: Path) -> None:
    """Moves a file to its place on this machine; whoever looks sees none of it or all.

    Raises:
        OSError: It cannot be done; the source is still there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except OSError:  # Another disk, or what really is wrong.
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        source.unlink(missing_ok=True)


def stage(source: Path, target: Path, staging: Path) -> None:
    """Moves a file to where it waits; of too many that wait the oldest is dropped.

    Raises:
        OSError: It cannot be done.
    """
    move(source, target)
    for file in _waiting(staging)[:-_MOST_WAITING]:
        file.unlink(missing_ok=True)
        LOSSES.add("profile_dropped")
        warn_once(
            ("profile dropped", staging),
            "More than %d profiles wait in %s to be uploaded: the oldest are dropped. Further ones are counted, not "
            "logged.",
            _MOST_WAITING,
            staging,
        )


def _waiting(staging: Path) -> list[Path]:
    """The files that wait, oldest first; what is uploaded at this very moment may be among them, or not."""
    times: dict[Path, int] = {}
    for folder, _, names in os.walk(staging):  # Unlike rglob, it bears with folders that vanish.
        for file in (Path(folder, name) for name in names if name.endswith(SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                times[file] = file.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass
