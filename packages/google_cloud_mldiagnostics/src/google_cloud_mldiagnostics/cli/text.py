"""What the commands print, piece by piece: tables, times, sizes, and nothing that rules a terminal."""

from __future__ import annotations

import io
import math
import re
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

__all__ = [
    "columns",
    "format_ago",
    "format_bytes",
    "format_clock",
    "format_count",
    "format_duration",
    "format_number",
    "note",
    "one_line",
    "print_data",
    "sparkline",
]

_SECOND_NS: Final = 1_000_000_000
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_RULING: Final = re.compile(r"[^\n\x20-\x7e\xa0-\U0010ffff]")
"""What rules a terminal, ends of lines apart."""
_BARS: Final = "▁▂▃▄▅▆▇█"


def print_data(text: str) -> None:
    """Prints to standard output. Names are others' words: none of them may move the cursor."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A name may have letters that the terminal has not.
    print(_printable(text), end="", flush=True)


def note(text: str) -> None:
    """Prints a line for people to standard error."""
    print(f"mldiagnostics: {_printable(text)}", file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    return _RULING.sub(lambda ruling: f"\\x{ord(ruling[0]):02x}", text)


def columns(cells: Sequence[Sequence[str]], align: str, indent: str = "  ") -> list[str]:
    """Returns the lines of a table whose columns are as wide as they must be.

    Args:
        cells: Rows of as many texts as `align` has characters.
        align: < or > for each column.
        indent: In front of each line.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        (
            indent + "   ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def one_line(text: str, length: int) -> str:
    """Returns a text as one line of printable characters, cut to a length."""
    line = "".join(character if character.isprintable() else " " for character in text[: length + 1])
    return line if len(line) <= length else line[: length - 3] + "..."


def format_count(number: int, noun: str, nouns: str = "") -> str:
    """Returns a number with its noun: 1 step, 2 steps."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def format_clock(time_ns: int | None) -> str:
    """Returns a moment to the second, in UTC: 2026-11-21 05:36:43Z; a dash for None."""
    return "-" if time_ns is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(time_ns // _SECOND_NS))


def format_duration(seconds: float | None) -> str:
    """Returns a duration in the two units that matter: 37 ms, 41.2 s, 3 min 20 s, 5 h 12 min; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if 0 < seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    for (unit, size), (smaller, smaller_size) in pairwise(_UNITS):
        if seconds >= size:
            whole, part = divmod(round(seconds / smaller_size), size // smaller_size)
            return f"{whole} {unit} {part} {smaller}"
    return "-"


def format_ago(time_ns: int | None, now_ns: int) -> str:
    """Returns how long ago a moment was; a dash for None."""
    return "-" if time_ns is None else f"{format_duration(max(0, now_ns - time_ns) // _SECOND_NS)} ago"


def format_bytes(size: int | None) -> str:
    """Returns a size in the unit that suits it; a dash for None."""
    if size is None:
        return "-"
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size} B"


def format_number(number: float | None) -> str:
    """Returns a number to the digits that people read: six, and whole ones in full; a dash for None."""
    if number is None:
        return "-"
    if math.isfinite(number) and number == int(number) and abs(number) < 1e9:
        return f"{int(number):,}"
    return f"{number:.6g}"


def sparkline(values: Sequence[float], length: int = 24) -> str:
    """Returns the course of values as a line of bars; empty where standard output cannot show it."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2 or not _can_print(_BARS):
        return ""
    parts = [finite[len(finite) * at // length : len(finite) * (at + 1) // length] for at in range(length)]
    means = [sum(value / len(part) for value in part) for part in parts if part] if len(finite) >= length else finite
    low, high = min(means), max(means)
    if low == high:
        return _BARS[0] * len(means)
    # Halved: what lies between the ends of a job that diverges may be more than a float can hold.
    share = [(mean / 2 - low / 2) / (high / 2 - low / 2) for mean in means]
    return "".join(_BARS[min(len(_BARS) - 1, int(part * len(_BARS)))] for part in share)


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
