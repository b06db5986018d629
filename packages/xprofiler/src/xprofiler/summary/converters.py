"""XProf's converters, run in this process.

They cache results beside the files, see `private_copy`, and silently show less if the disk is full.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.exceptions import MissingExtraError

__all__ = [
    "Table",
    "Tables",
    "converted",
    "require_disk_space",
    "require_xprof",
    "temporary_folder",
    "tool_names",
    "tools_with_data",
]

_LEAST_BYTES = 1 << 20
_COLUMNS: Final = {"hlo_stats": "hlo_op_name", "kernel_stats": "kernel_name"}
_SAME_DATA: Final = dict.fromkeys(("op_profile", "hlo_op_profile", "roofline_model"), "hlo_stats")
"""Tools that show the operations of another tool."""

Table = list[dict[str, Any]]
"""Rows with values by column id."""


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


class Tables:
    """DataTables of Google Charts, from XProf's converters.

    Args:
        tables: The decoded JSON; values that are not tables are ignored.
    """

    def __init__(self, tables: Any) -> None:
        listed = tables if isinstance(tables, list) else [tables]
        self._tables = [table for table in listed if isinstance(table, dict) and "cols" in table]

    def rows(self, column: str) -> Table:
        """Return the rows of the first table that has a column."""
        for table in self._tables:
            ids = [each.get("id") for each in table["cols"]]
            if column in ids:
                return [
                    dict(zip(ids, (cell.get("v") for cell in row["c"]), strict=False)) for row in table.get("rows", ())
                ]
        return []

    def text(self, name: str) -> str:
        """Return a property of the first table that has it; empty if none does."""
        for table in self._tables:
            if name in table.get("p", {}):
                return str(table["p"][name])
        return ""

    def number(self, name: str) -> float | None:
        """Return a property as a number, without a percent sign; None if it is missing or not a number."""
        try:
            return float(self.text(name).removesuffix("%"))
        except ValueError:
            return None


def require_xprof(feature: str) -> None:
    """Raise `MissingExtraError` if XProf is not installed."""
    from importlib.util import find_spec

    if find_spec("xprof") is None:
        raise MissingExtraError(feature, "cloud-diagnostics-xprof", "serve")


def tool_names(files: Iterable[Path]) -> list[str]:
    """Return XProf's tools for these files; none if they cannot be read."""
    from xprof.convert import raw_to_tool_data

    names: list[str] = raw_to_tool_data.xspace_to_tool_names([str(file) for file in files])
    return [name for name in names if name]


def tools_with_data(files: Sequence[Path], *, has_devices: bool) -> list[str]:
    """Return XProf's tools that have data for these files. XProf itself also lists tools that would be empty.

    Args:
        files: All files of one profile.
        has_devices: True if the profile has devices: XProf measures input only on devices.
    """
    has_data = functools.cache(lambda tool: _has_data(tool, files, has_devices))  # A conversion takes long.
    return [name for name in tool_names(files) if has_data(_SAME_DATA.get(name, name))]


def _has_data(tool: str, files: Sequence[Path], has_devices: bool) -> bool:
    if tool == "input_pipeline_analyzer":
        return has_devices
    if tool in ("hlo_stats", "kernel_stats"):
        return bool(Tables(converted(files, tool) or []).rows(_COLUMNS[tool]))
    if tool == "framework_op_stats":
        return any(row["type"] != "IDLE" for row in Tables(converted(files, tool) or []).rows("type"))
    if tool == "memory_profile":
        return len(files) == 1 and bool((converted(files, tool) or {}).get("memoryProfilePerAllocator"))
    if tool in ("memory_viewer", "graph_viewer"):  # They show a module's program, which XProf writes beside the file.
        modules = files[0].parent.glob("*.hlo_proto.pb")
        return any(module.name != "NO_MODULE.hlo_proto.pb" for module in modules)
    return True


def converted(files: Iterable[Path], tool: str) -> Any:
    """Return the data of a tool for these files, decoded from JSON; None if there is none."""
    from xprof.convert import raw_to_tool_data

    data, _ = raw_to_tool_data.xspace_to_tool_data([str(file) for file in files], tool, {})
    return None if not data else json.loads(data)
