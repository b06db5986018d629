"""Durations, sizes, counts, times and ids as people read them: the same in all output. Pure functions."""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

__all__ = [
    "format_ago",
    "format_bytes",
    "format_clock",
    "format_count",
    "format_duration",
    "format_percent",
    "format_three_digits",
    "jitted_name",
    "one_line",
    "readable_id",
]

_SECOND_NS = 1_000_000_000
_SHORT_UNITS = (("us", 1e6, 999.5e-6), ("ms", 1e3, 0.9995), ("s", 1.0, 59.95))
"""Unit, how many make a second, and the duration from which the next unit is used, so that nothing rounds to 1000."""
_LONG_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_LONGEST_ID = 63


def format_duration(seconds: float | None) -> str:
    """Format a duration: 850 us, 37.0 ms, 41.2 s, 3 min 20 s, 5 h 12 min, 12 d 3 h; a dash if it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    for unit, in_a_second, limit in _SHORT_UNITS:
        if seconds < limit:
            return f"{format_three_digits(seconds * in_a_second)} {unit}"
    for (unit, size), (smaller_unit, smaller_size) in pairwise(_LONG_UNITS):
        parts = round(seconds / smaller_size)
        if parts * smaller_size >= size:
            return f"{parts // (size // smaller_size)} {unit} {parts % (size // smaller_size)} {smaller_unit}"
    raise AssertionError(f"a minute or longer has a unit, got {seconds!r}")


def jitted_name(function: str) -> str:
    """Return the name of a compiled function, which newer versions of JAX report as `jit(name)`."""
    if function.startswith(("jit(", "pmap(")) and function.endswith(")"):
        return function.partition("(")[2][:-1]
    return function.removeprefix("jit_")


def format_bytes(size: int | None) -> str:
    """Format a size in decimal units: 850 B, 1.20 kB, 25.1 MB; a dash if it is not known."""
    if size is None:
        return "-"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * factor:
            return f"{format_three_digits(size / factor)} {unit}"
    return f"{size} B"


def format_count(number: int, noun: str, nouns: str = "") -> str:
    """Format a number with its noun: 1 step, 2,000 steps; `nouns` is a plural that does not end in s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def format_percent(percent: float | None, digits: int = 1) -> str:
    """Format a percentage: 14.8 %; a dash if it is not known."""
    return "-" if percent is None else f"{percent:.{digits}f} %"


def format_three_digits(number: float) -> str:
    """Format a number below 1000 with three digits: 1.23, 12.3, 123."""
    if number == 0:
        return "0"
    size = abs(number)
    return f"{number:.0f}" if size >= 99.95 else f"{number:.1f}" if size >= 9.995 else f"{number:.2f}"


def format_clock(time_ns: int | None) -> str:
    """Format a time to the second, in UTC: 2026-11-21 05:36:43Z; a dash if it is not known."""
    return "-" if time_ns is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(time_ns // _SECOND_NS))


def format_ago(time_ns: int | None, now_ns: int) -> str:
    """Format how long ago a time was, to the second; a dash if it is not known."""
    return "-" if time_ns is None else f"{format_duration(max(0, now_ns - time_ns) // _SECOND_NS)} ago"


def one_line(text: str, length: int | None = None) -> str:
    """Replace characters that are not printable, such as line breaks, by spaces, and cut the text to a length."""
    shown = text if length is None else text[: length + 1]
    if not shown.isprintable():
        shown = "".join(character if character.isprintable() else " " for character in shown)
    return shown if length is None or len(shown) <= length else f"{shown[: length - 3]}..."


def readable_id(*parts: str, is_exact: bool = False) -> str:
    """Return an id of `[a-z][a-z0-9-]{0,62}` that people recognize.

    If letters had to be left out (of a name in another script) or the id is too long, a digest of all parts makes it
    unique. The last part is kept where it fits: it is a time, or a number.

    Args:
        *parts: Text in any script; the first is the name.
        is_exact: True if different parts must have different ids, as where none of them is a time or random: then the
            id has the digest also if capitals or punctuation were left out, or one of several parts contains a dash. A
            name alone may still equal the joined parts of another.
    """
    import hashlib  # Not at the top: commands that print a table do not need it.

    words = [_plain(part) for part in parts]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:8]
    is_faithful = _is_exact(parts, words) if is_exact else all(_is_plain(part) for part in parts)
    name = words[0] if words[0][:1].isalpha() else f"run-{words[0]}".rstrip("-")
    run_id = "-".join(word for word in [name, *words[1:], "" if is_faithful else digest] if word)
    if len(run_id) <= _LONGEST_ID:
        return run_id
    last = words[-1][-20:].strip("-") if len(words) > 1 else ""
    end = "-".join(word for word in [digest, last] if word)
    return f"{run_id[: _LONGEST_ID - len(end) - 1].rstrip('-')}-{end}"


def _plain(text: str) -> str:
    """Return lower-case letters, digits and single dashes; accents are removed."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text.lower()).strip("-")


def _is_exact(parts: Sequence[str], words: Sequence[str]) -> bool:
    """Return True if the id determines the words, and the words the parts."""
    is_kept = list(parts) == list(words) and parts[0][:1].isalpha()
    return is_kept and (len(parts) == 1 or not any("-" in word for word in words))


def _is_plain(text: str) -> bool:
    """Return True if an id keeps all of a text but punctuation, accents and case."""
    decomposed = unicodedata.normalize("NFKD", text)
    return bool(_plain(text)) and all(char.isascii() or unicodedata.combining(char) for char in decomposed)
