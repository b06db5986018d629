"""Lines that jobs printed: with their times, safe to show on a terminal, and those of many hosts in one order. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ["Line", "Shown", "lines_of", "merged", "safe", "window"]

_COLORS: Final = re.compile(r"\x1b\[[0-9;:]*[mK]|\x1b\(B|\x1b\[\?25[lh]")
"""Escape sequences for colors, for erasing to the end of a line and for the cursor, which progress bars print."""
_EQUAL_NS: Final = 5_000_000_000
"""Hosts print one line, such as that of a step, within this time."""


class Line(NamedTuple):
    """A line that a process printed.

    Attributes:
        time_ns: The time by which it was printed, in ns since 1970; None if it is not known.
        process: The name of the process.
        stream: out, err or out+err.
        text: The line, safe to show.
    """

    time_ns: int | None
    process: str
    stream: str
    text: str


class Shown(NamedTuple):
    """A line with all processes that printed it."""

    time_ns: int | None
    processes: tuple[str, ...]
    stream: str
    text: str


def safe(text: str) -> str:
    """Return a line so that it cannot control a terminal, or be read in another order than it was written.

    The last state of a progress bar is left of what it printed. Colors are removed; all other control characters, and
    those that change the direction of writing, are escaped.
    """
    plain = _COLORS.sub("", text)
    state = plain.rstrip("\r").rpartition("\r")[2]
    if state.isprintable():
        return state
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in state)


def lines_of(
    text: str, process: str, stream: str, times: Sequence[tuple[int, int]] = (), offset_ns: int = 0
) -> list[Line]:
    """Return the lines of a text.

    Args:
        text: The text. Of a part of a stream, the first line may be cut.
        process: The name of the process.
        stream: The stream.
        times: Numbers of its lines, in order, with the time by which they were printed.
        offset_ns: The clock of these times less the one that lines are to have.
    """
    found, marks = [], iter(times)
    count, time_ns = next(marks, (0, None))
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines):
        while time_ns is not None and number >= count:
            count, time_ns = next(marks, (0, None))
        found.append(Line(None if time_ns is None else time_ns - offset_ns, process, stream, safe(line)))
    return found


def window(lines: Iterable[Line], start_ns: int, end_ns: int) -> list[Line]:
    """Return the lines of a time range."""
    return [line for line in lines if line.time_ns is not None and start_ns <= line.time_ns <= end_ns]


def merged(lines: Iterable[Line]) -> list[Shown]:
    """Return lines of many processes in the order of time; equal ones of different processes are one, if close.

    Args:
        lines: The lines; of one process they are in its own order.
    """
    found: list[list[Line]] = []
    last: dict[tuple[str, str], tuple[list[Line], set[str]]] = {}
    for line in sorted(lines, key=lambda line: line.time_ns or 0):
        group, processes = last.get((line.stream, line.text), ([], set()))
        is_close = bool(group) and (line.time_ns or 0) - (group[0].time_ns or 0) <= _EQUAL_NS
        if not is_close or line.process in processes:
            group, processes = [], set()
            last[line.stream, line.text] = group, processes
            found.append(group)
        group.append(line)
        processes.add(line.process)
    return [
        Shown(group[0].time_ns, tuple(line.process for line in group), group[0].stream, group[0].text)
        for group in found
    ]
