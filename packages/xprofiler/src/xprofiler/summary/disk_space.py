"""Checks of disk space, since XProf silently shows less if it cannot write caches beside a profile."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_diagnostics_common.command.errors import CommandError

__all__ = ["require_disk_space", "temporary_folder"]

_LEAST_BYTES = 1 << 20


def require_disk_space(files: Collection[Path]) -> None:
    """Check that the size of some files is free in their folder, which is the space that XProf's caches need.

    Args:
        files: The files.

    Raises:
        CommandError: The disk is full, or the size of files is limited.
    """
    size_bytes = max(_LEAST_BYTES, sum(file.stat().st_size for file in files))
    folder = next(iter(files)).parent
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(probe.fileno(), 0, size_bytes)
            elif shutil.disk_usage(folder).free < size_bytes:
                raise OSError("the disk is full")
    except OSError as error:
        raise CommandError(
            f"XProf needs {size_bytes / 1e6:.0f} MB of temporary space to read this profile, but {folder} does not "
            f"have it ({error.strerror or error}): free some space, or set TMPDIR to another folder"
        ) from error


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a temporary folder for a block.

    Args:
        prefix: The prefix of its name.

    Raises:
        CommandError: The folder cannot be created.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise CommandError(
            f"cannot create a temporary folder ({error.strerror or error}): free some space, or set TMPDIR"
        ) from error
    with folder:
        yield Path(folder.name)
