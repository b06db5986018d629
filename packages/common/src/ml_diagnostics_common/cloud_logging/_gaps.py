"""When to request entries that are missing in a writer's sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GapSchedule"]

Gap = tuple[int, int]
"""The first and the last missing sequence number."""

_MAX_GAPS = 20


@dataclass
class _Requested:
    """The requests for one writer; an attempt is over when the cursor has passed all gaps."""

    gaps: Sequence[Gap]
    cursor: int = 0
    attempts: int = 0
    next_seconds: float = 0.0

    def take(self, most: int) -> list[Gap]:
        """Return the next gaps; start a new attempt after the last."""
        taken = [gap for gap in self.gaps if gap[0] >= self.cursor][:most]
        self.cursor = taken[-1][1] + 1
        if self.cursor > self.gaps[-1][0]:
            self.cursor = 0
            self.attempts += 1
        return taken


@dataclass
class GapSchedule:
    """Requests a gap at once, then with growing delays, without end: an entry may be shipped days later.

    All gaps that are due fit one request. A gap that is never filled, because its entry was refused or lost with its
    disk, costs one request in `longest_seconds`.

    Attributes:
        first_seconds: The delay after the first request.
        longest_seconds: The longest delay.
    """

    first_seconds: float = 10.0
    longest_seconds: float = 600.0
    _writers: dict[str, _Requested] = field(default_factory=dict)

    def due(self, gaps: Mapping[str, Sequence[Gap]], now_seconds: float) -> dict[str, list[Gap]]:
        """Return the gaps to request now, and count them as requested.

        Args:
            gaps: All gaps by writer.
            now_seconds: Monotonic seconds.

        Returns:
            Gaps by writer, at most 20 in all; of a writer with more gaps, others the next time.
        """
        self._writers = {writer: requested for writer, requested in self._writers.items() if writer in gaps}
        due: dict[str, list[Gap]] = {}
        left = _MAX_GAPS
        for writer, of_writer in gaps.items():
            requested = self._writers.setdefault(writer, _Requested(of_writer))
            if left == 0 or now_seconds < requested.next_seconds:
                continue
            if requested.gaps != of_writer:
                requested.gaps, requested.attempts = of_writer, 0
                requested.cursor = min(requested.cursor, of_writer[-1][0])
            due[writer] = requested.take(left)
            left -= len(due[writer])
            delay = self.first_seconds * 2.0 ** min(max(0, requested.attempts - 1), 30)
            requested.next_seconds = now_seconds + min(self.longest_seconds, delay)
        return due
