"""The entries that a mirror lacks of its writers, as far as their numbers, their ends and their ages show.

A writer that runs has entries that are not in the mirror yet. Without an end, and without an entry that is younger than
the time between two objects allows, it was killed, and its last entries may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from ml_diagnostics_common.mirror._pace import OTHERS_SECONDS, is_of_first_process

__all__ = ["Covers", "MirroredWriter", "covers_nothing", "is_complete", "lag_seconds", "missing"]

_FRESH_NS = 300 * 10**9
_LIVE_NS = 3_600 * 10**9

Covers = Callable[[str, int, int], bool]
"""Return True if all entries of a writer from a sequence number to another were read, from any source."""


class MirroredWriter(NamedTuple):
    """One writer, as far as a reader has read it.

    Attributes:
        writer: Its name.
        labels: The labels of its entries.
        first: The least sequence number that was read.
        last: The greatest.
        last_ns: The greatest time of its entries, in ns since 1970.
        has_ended: True if it has ended, and all of its entries are in the mirror.
        gaps: The (first, last) sequence numbers that are missing, from its first entry on: entries that were dropped
            because the disk was full, or that are not in the mirror.
    """

    writer: str
    labels: Mapping[str, str]
    first: int
    last: int
    last_ns: int
    has_ended: bool
    gaps: list[tuple[int, int]]

    def is_silent(self, now_ns: int) -> bool:
        """Return True if it has no end, and should have written an object since its last entry."""
        paused_ns = 0 if is_of_first_process(self.labels) else round(OTHERS_SECONDS * 1e9)
        return not self.has_ended and now_ns - self.last_ns >= _FRESH_NS + paused_ns

    def may_run(self, now_ns: int) -> bool:
        """Return True if it has no end, and an entry of the last hour."""
        return not self.has_ended and now_ns - self.last_ns < _LIVE_NS


def covers_nothing(writer: str, first: int, last: int) -> bool:
    """Return False: no other source was read."""
    return False


def is_complete(
    writers: Collection[MirroredWriter], now_ns: int, covers: Covers = covers_nothing, journal: Collection[str] = ()
) -> bool:
    """Return True if nothing of some writers is missing; False if there are none.

    Args:
        writers: The writers.
        now_ns: The time, in ns since 1970.
        covers: Return True for entries that were read, from any source.
        journal: The writers in the journal of this machine, which has all of their entries.
    """
    return bool(writers) and not missing(writers, now_ns, covers, journal)


def missing(
    writers: Iterable[MirroredWriter], now_ns: int, covers: Covers = covers_nothing, journal: Collection[str] = ()
) -> list[str]:
    """Return sentences for the user on what is missing; the arguments are those of `is_complete`."""
    notes = []
    for writer in writers:
        for first, last in writer.gaps:
            if not covers(writer.writer, first, last):
                notes.append(f"entries {first} to {last} of writer {writer.writer} are not in the mirror")
        if writer.is_silent(now_ns) and writer.writer not in journal:
            notes.append(f"no end from writer {writer.writer}: its last entries may be missing")
    return notes


def lag_seconds(
    writers: Collection[MirroredWriter], now_ns: int, covers: Covers, journal: Collection[str]
) -> float | None:
    """Return how old the last mirrored entry of the writers is that run and have newer ones, or may have.

    Processes of a job other than the first count only if they are late for their own pace.

    Args:
        writers: The writers.
        now_ns: The time, in ns since 1970.
        covers: Return True for entries that were read, from any source.
        journal: The writers in the journal of this machine.

    Returns:
        Seconds, 0 if nothing is missing; None if there are no writers.
    """
    ages = [
        now_ns - writer.last_ns
        for writer in writers
        if writer.may_run(now_ns)
        and (is_of_first_process(writer.labels) or writer.is_silent(now_ns))
        and (writer.writer not in journal or covers(writer.writer, writer.last + 1, writer.last + 1))
    ]
    return max([0, *ages]) / 1e9 if writers else None
