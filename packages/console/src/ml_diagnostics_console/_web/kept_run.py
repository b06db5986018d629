"""State of the store for one run, besides its data: its row, and when the parts of that were made."""

from __future__ import annotations

from typing import Any

from ml_diagnostics_console._web.run_data import RunData

__all__ = ["KeptRun"]


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

    __slots__ = (
        "changed_ns",
        "encoded",
        "goodput",
        "has_new_points",
        "is_goodput_due",
        "pictures",
        "pictures_ns",
        "pictures_version",
        "points_ns",
        "run",
        "sessions_ns",
        "updated_ns",
    )

    def __init__(self, run: RunData) -> None:
        self.run = run
        self.updated_ns = self.changed_ns = self.pictures_ns = 0
        self.points_ns = 0
        self.has_new_points = False
        self.pictures_version = -1
        self.pictures: dict[str, Any] = {}
        self.goodput: dict[str, Any] = {}
        self.is_goodput_due = False
        self.encoded = b""
        self.sessions_ns: int | None = None
