"""State of the store for one run, besides its data: its row, and when the parts of that were made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ml_diagnostics_console._web.run_data import RunData

__all__ = ["KeptRun"]


@dataclass(slots=True, eq=False)
class KeptRun:
    """The row of a run, and when its parts were made.

    Attributes:
        run: The data.
        updated_ns: When its state was worked out last.
        changed_ns: When its version grew last.
        pictures_ns: When the pictures of its row were made last.
        pictures_version: The version of the run that they are of.
        pictures: The pictures of its row.
        points_ns: When the numbers of its values were compared last.
        has_new_points: True if it may have more since.
        goodput: The pictures that show where its time went.
        is_goodput_due: True if that is to be read again.
        encoded: Its row as JSON.
        sessions_ns: When its profiler sessions were read; None before.
    """

    run: RunData
    updated_ns: int = 0
    changed_ns: int = 0
    pictures_ns: int = 0
    pictures_version: int = -1
    pictures: dict[str, Any] = field(default_factory=dict)
    points_ns: int = 0
    has_new_points: bool = False
    goodput: dict[str, Any] = field(default_factory=dict)
    is_goodput_due: bool = False
    encoded: bytes = b""
    sessions_ns: int | None = None
