"""When to ask again for entries that a writer's sequence says must exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GapSchedule"]

Stretch = tuple[int, int]

_MOST_STRETCHES = 20


@dataclass
class _Asked:
    """What was asked of one writer; the cursor goes round over its stretches, a round is one attempt."""

    stretches: Sequence[Stretch]
    cursor: int = 0
    attempts: int = 0
    next_seconds: float = 0.0

    def take(self, room: int) -> list[Stretch]:
        """The next stretches, and a new round behind the last."""
        taken = [stretch for stretch in self.stretches if stretch[0] >= self.cursor][:room]
        self.cursor = taken[-1][1] + 1
        if self.cursor > self.stretches[-1][0]:
            self.cursor = 0
            self.attempts += 1
        return taken


@dataclass
class GapSchedule:
    """Asks for a gap at once, then ever more seldom, and never gives up: an entry may be shipped days later.

    Everything that is due fits one request, so a gap that is never filled (its entry was refused, or lost
    with its disk) costs one request in `longest_seconds`.

    Attributes:
        first_seconds: The wait after the first time.
        longest_seconds: The wait in the end.
    """

    first_seconds: float = 10.0
    longest_seconds: float = 600.0
    _writers: dict[str, _Asked] = field(default_factory=dict)

    def due(self, gaps: Mapping[str, Sequence[Stretch]], now_seconds: float) -> dict[str, list[Stretch]]:
        """What to ask for now, which counts as asked.

        Args:
            gaps: For each writer the (first, last) sequence numbers that are missing.
            now_seconds: Monotonic seconds.

        Returns:
            Stretches by writer, 20 in all at most; where a writer misses more, other ones the next time.
        """
        self._writers = {writer: asked for writer, asked in self._writers.items() if writer in gaps}
        due: dict[str, list[Stretch]] = {}
        room = _MOST_STRETCHES
        for writer, stretches in gaps.items():
            asked = self._writers.setdefault(writer, _Asked(stretches))
            if room == 0 or now_seconds < asked.next_seconds:
                continue
            if asked.stretches != stretches:
                asked.stretches, asked.attempts = stretches, 0
                asked.cursor = min(asked.cursor, stretches[-1][0])
            due[writer] = asked.take(room)
            room -= len(due[writer])
            wait = self.first_seconds * 2.0 ** min(max(0, asked.attempts - 1), 30)
            asked.next_seconds = now_seconds + min(self.longest_seconds, wait)
        return due
