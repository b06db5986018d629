"""The objects of a writer that lives, collected until their hour is over."""

from __future__ import annotations

from ml_diagnostics_common.mirror._upload import WrittenObject
from ml_diagnostics_common.mirror.names import SegmentName
from ml_diagnostics_common.mirror.rollup import NS_PER_HOUR, ROLLED_UP_BYTES

__all__ = ["Hours"]


class Hours:
    """Objects of level 0 of one writer, by the hour of their first entries."""

    def __init__(self) -> None:
        self._names: list[SegmentName] = []
        self._bytes = 0
        self._hour = -1

    def add(self, written: WrittenObject) -> list[SegmentName]:
        """Add an object; return those of the hour that ends with it, or of a part of an hour that is large enough."""
        hour = written.first_ns // NS_PER_HOUR
        is_next = hour != self._hour or (bool(self._names) and written.name.day != self._names[0].day)
        closed: list[SegmentName] = []
        if is_next or self._bytes + written.size > ROLLED_UP_BYTES:
            closed, self._names, self._bytes = self._names, [], 0
            self._hour = hour
        self._names.append(written.name)
        self._bytes += written.size
        return closed if len(closed) > 1 else []
