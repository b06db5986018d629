"""The times at which a stream was printed: a mark says that all before a position was printed by a time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["MARK_NS", "TimeMarks", "times_of_lines"]

MARK_NS: Final = 250_000_000
"""The least time between two marks."""
_MOST_MARKS: Final = 512


class TimeMarks:
    """The marks of one stream, in bounded memory: the older they are, the fewer."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []

    def add(self, position: int, time_ns: int) -> None:
        """Add a mark, unless nothing was printed since the last one.

        Args:
            position: The number of bytes that were printed.
            time_ns: When that was seen, in ns since 1970.
        """
        marks = self._marks
        if marks and position <= marks[-1][0]:
            if position < marks[-1][0]:  # The stream starts again.
                marks.clear()
            else:
                return
        if len(marks) > 1 and time_ns - marks[-2][1] < MARK_NS:
            marks[-1] = position, time_ns
        else:
            marks.append((position, time_ns))
        if len(marks) > _MOST_MARKS:
            self._marks = marks[: _MOST_MARKS // 2 : 2] + marks[_MOST_MARKS // 2 :]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._marks)


def times_of_lines(data: bytes, start: int, marks: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return by when the lines of a text were printed: pairs of a number of lines, and the time.

    Args:
        data: The text.
        start: Its position in the stream.
        marks: The marks of the stream.
    """
    found: list[list[int]] = []
    position = lines = 0
    for mark, time_ns in marks:
        end = min(mark - start, len(data))
        if end <= position:
            continue
        lines += data.count(b"\n", position, end)
        position = end
        is_last = end == len(data) and not data.endswith(b"\n")
        number = lines + is_last
        if number and not (found and found[-1][0] == number):
            found.append([number, time_ns])
    return found
