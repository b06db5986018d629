"""The learned pauses of a job, saved on disk for its next process.

    $ML_DIAGNOSTICS_DIR/state/hangs/<job>.v1.json    {"phases": {"step": {"seconds": 61.2, "time": 1763800000.0}, ...}}

By phase the longest pause that still counts, and when it was. Several processes of a job may save at the same time.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.files import make_private_folder, open_lock_file, read_state, wait_for_lock, write_state
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.progress import PHASES

from cloud_tpu_diagnostics._companion.hang_watch import Pauses, valid_seconds

__all__ = ["load_learned", "save_learned"]

_SUFFIX: Final = ".v1.json"
"""A version of this library with another format uses another suffix."""
_LOCK_SECONDS: Final = 1.0
_LONGEST_AGE_SECONDS: Final = 30 * 86_400.0


def load_learned(job: str) -> dict[str, tuple[float, float]]:
    """Return by phase the longest pause, and how long ago it was; empty if no readable state is saved.

    Args:
        job: The job's name.
    """
    now = time.time()
    return {phase: (seconds, now - moment) for phase, (seconds, moment) in _read(_path(job), now).items()}


def save_learned(job: str, learned: Pauses) -> None:
    """Add the pauses that a process has learned to those of its job; a longer pause that still counts stays.

    Args:
        job: The job's name.
        learned: The longest pause of each phase, and its age.

    Raises:
        OSError: It cannot be written.
    """
    path = _path(job)
    make_private_folder(path.parent)
    with _locked(path):
        now = time.time()
        phases = _read(path, now)
        for phase, (seconds, ago_seconds) in learned.items():
            if seconds >= phases.get(phase, (0.0, 0.0))[0]:
                phases[phase] = seconds, now - ago_seconds
        encoded = {phase: {"seconds": seconds, "time": moment} for phase, (seconds, moment) in phases.items()}
        write_state(path, {"phases": encoded})
    _prune(path.parent, now)


def _path(job: str) -> Path:
    return diagnostics_directory() / "state" / "hangs" / f"{log_folder_name(job)}{_SUFFIX}"


def _read(path: Path, now: float) -> dict[str, tuple[float, float]]:
    """Return by phase the longest pause and when it was, of those that still count; a damaged part is left out."""
    state = read_state(path) or {}
    phases = state.get("phases")
    found = {}
    for phase, saved in phases.items() if isinstance(phases, dict) else ():
        seconds, moment = (saved.get("seconds"), saved.get("time")) if isinstance(saved, dict) else (None, None)
        if not (phase in PHASES and isinstance(seconds, (int, float)) and isinstance(moment, (int, float))):
            continue
        if 0 < seconds < math.inf and abs(moment) < math.inf and valid_seconds(now - moment) > 0:
            found[phase] = float(seconds), min(float(moment), now)  # The clock may have been set back since.
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; continue without it if another process keeps it, or the file system has none."""
    descriptor = -1
    try:
        with contextlib.suppress(OSError):
            descriptor = open_lock_file(path.with_name(f".{path.name}.lock"))
            wait_for_lock(descriptor, _LOCK_SECONDS)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _prune(folder: Path, now: float) -> None:
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if now - file.lstat().st_mtime > _LONGEST_AGE_SECONDS:
                file.unlink()
