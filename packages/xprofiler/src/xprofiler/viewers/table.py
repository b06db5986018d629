"""The list of viewers, as a table for people and in the formats that programs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ml_diagnostics_common.command.formats import format_data, format_table

from xprofiler.viewers.viewer import Viewer

__all__ = ["format_viewers"]

_HEADERS: Final = ("Log_Directory  ", "URL  ", "Name  ", "Zone  ")
"""With the two spaces more that tabulate, which previous releases used, gives to headers."""
_STARTING: Final = ("PROVISIONING", "STAGING")


def format_viewers(viewers: Sequence[Viewer], style: str = "table") -> str:
    """Format viewers, with the columns of all previous releases.

    Args:
        viewers: The viewers, one per row.
        style: One of `FORMATS`. A table has a reason for each missing link.
    """
    if style == "table":
        rows = [(viewer.log_directory, _link(viewer), viewer.name, viewer.zone) for viewer in viewers]
        return "\n".join(format_table(_HEADERS, rows))
    records = [
        {
            "log_directory": viewer.log_directory,
            "url": viewer.url,
            "name": viewer.name,
            "zone": viewer.zone,
            "status": viewer.status,
        }
        for viewer in viewers
    ]
    return format_data(records, style, records, ("log_directory", "url", "name", "zone", "status"))


def _link(viewer: Viewer) -> str:
    """Return the link, or the reason why it is missing."""
    if viewer.url:
        return viewer.url
    if viewer.status == "RUNNING":
        return viewer.state if viewer.state in ("starting", "failed") else "no link"
    return "starting" if viewer.status in _STARTING else viewer.status.lower()
