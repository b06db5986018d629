"""XProf's converters, in this process; what they compute they keep beside the files: see `private_copy`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.exceptions import MissingExtraError

__all__ = ["Table", "Tables", "converted", "require_xprof", "tool_names", "tools_with_data"]

_COLUMNS: Final = {"hlo_stats": "hlo_op_name", "kernel_stats": "kernel_name"}

Table = list[dict[str, Any]]
"""Rows, by the ids of their columns."""


class Tables:
    """Google Charts' DataTables, as XProf's converters write them.

    Args:
        tables: Decoded from JSON; those that are no table are passed over.
    """

    def __init__(self, tables: Any) -> None:
        listed = tables if isinstance(tables, list) else [tables]
        self._tables = [table for table in listed if isinstance(table, dict) and "cols" in table]

    def rows(self, column: str) -> Table:
        """The rows of the first table that has such a column."""
        for table in self._tables:
            ids = [each.get("id") for each in table["cols"]]
            if column in ids:
                return [
                    dict(zip(ids, (cell.get("v") for cell in row["c"]), strict=False)) for row in table.get("rows", ())
                ]
        return []

    def text(self, name: str) -> str:
        """A property of any table; empty if none has it."""
        for table in self._tables:
            if name in table.get("p", {}):
                return str(table["p"][name])
        return ""

    def number(self, name: str) -> float | None:
        """The same as a number, without its percent sign; None if there is none."""
        try:
            return float(self.text(name).removesuffix("%"))
        except ValueError:
            return None


def require_xprof(feature: str) -> None:
    """Raises `MissingExtraError` where there is no XProf."""
    from importlib.util import find_spec

    if find_spec("xprof") is None:
        raise MissingExtraError(feature, "cloud-diagnostics-xprof", "serve")


def tool_names(files: Iterable[Path]) -> list[str]:
    """Return XProf's tools for these files; none if they cannot be read."""
    from xprof.convert import raw_to_tool_data

    names: list[str] = raw_to_tool_data.xspace_to_tool_names([str(file) for file in files])
    return [name for name in names if name]


def tools_with_data(files: Sequence[Path], *, has_devices: bool) -> list[str]:
    """Return XProf's tools that show something of these files: it lists also those that would be empty.

    Args:
        files: All of one profile.
        has_devices: Whether the profile has devices: XProf measures input on them alone.
    """
    return [name for name in tool_names(files) if _has_data(name, files, has_devices)]


def _has_data(tool: str, files: Sequence[Path], has_devices: bool) -> bool:
    if tool == "input_pipeline_analyzer":
        return has_devices
    if tool in ("op_profile", "hlo_op_profile", "roofline_model"):
        tool = "hlo_stats"  # They show the same operations.
    if tool in ("hlo_stats", "kernel_stats"):
        return bool(Tables(converted(files, tool) or []).rows(_COLUMNS[tool]))
    if tool == "framework_op_stats":
        return any(row["type"] != "IDLE" for row in Tables(converted(files, tool) or []).rows("type"))
    if tool == "memory_profile":
        return len(files) == 1 and bool((converted(files, tool) or {}).get("memoryProfilePerAllocator"))
    if tool in ("memory_viewer", "graph_viewer"):  # They show a module's program, which XProf has put beside the file.
        modules = files[0].parent.glob("*.hlo_proto.pb")
        return any(module.name != "NO_MODULE.hlo_proto.pb" for module in modules)
    return True


def converted(files: Iterable[Path], tool: str) -> Any:
    """Return what a tool makes of these files, decoded from JSON; None if it makes nothing of them."""
    from xprof.convert import raw_to_tool_data

    data, _ = raw_to_tool_data.xspace_to_tool_data([str(file) for file in files], tool, {})
    return None if not data else json.loads(data)
