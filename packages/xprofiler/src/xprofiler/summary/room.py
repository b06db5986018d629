"""Whether there is room for what XProf keeps beside a profile: where there is none, it shows less, and says nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from xprofiler.exceptions import XprofilerError

__all__ = ["require_room", "temporary_folder"]

_LEAST_BYTES = 1 << 20


def require_room(files: Collection[Path]) -> None:
    """Make sure that as much can be written beside some files as they have, which is what XProf's converters keep.

    Args:
        files: Of one folder each, or the same.

    Raises:
        XprofilerError: There is no such room, or a limit on the size of files.
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
        raise XprofilerError(
            f"XProf needs {size_bytes / 1e6:.0f} MB of temporary space to read this profile, and {folder} has not that "
            f"much ({error.strerror or error}): make room there, or set TMPDIR to another folder"
        ) from error


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder for the length of a block.

    Args:
        prefix: What its name begins with.

    Raises:
        XprofilerError: None can be made, or nothing be written there.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise XprofilerError(
            f"cannot make a temporary folder ({error.strerror or error}): make room, or set TMPDIR to another folder"
        ) from error
    with folder:
        yield Path(folder.name)
