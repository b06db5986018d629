"""Sentences with marks, as data: which parts are bold, and which are code. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.redaction import redact_text
from ml_diagnostics_common.texts import one_line

__all__ = ["marked", "safe_line"]

_MOST_NAMES: Final = 300
_LONGEST: Final = 2_000
_NUMBER: Final = r"\d[\d,]*(?:\.\d+)?"
_BOLD: Final = rf"{_NUMBER} (?:d|h|min|ms|us|s|%)(?: {_NUMBER} (?:d|h|min|s))?(?!\w|\.\d)|(?<=\bstep ){_NUMBER}"
_CODE: Final = (
    r"[\w.<>]+ \([^()\s]+\.\w+:\d+\)|(?<![\w/])(?:[A-Z]\w*(?:Error|Exception|Interrupt)|SIG[A-Z]{3,6})\b|`[^`]+`"
)


def safe_line(text: object, length: int = _LONGEST) -> str:
    """Return a text of the job as one line without secrets, control characters or lone surrogates."""
    return printable(one_line(redact_text(str(text)), length))


def marked(text: str, names: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return a sentence in parts: durations, shares and steps are bold; frames, exceptions, signals and names code.

    Args:
        text: The sentence; what is between two backquotes is code.
        names: Names of hosts that may be in it.
    """
    parts: list[dict[str, Any]] = []
    last = 0
    for match in _pattern(tuple(sorted(set(names), key=lambda name: (-len(name), name))[:_MOST_NAMES])).finditer(text):
        if match.start() > last:
            parts.append({"text": text[last : match.start()], "kind": "text"})
        kind = "bold" if match.lastgroup == "bold" else "code"
        parts.append({"text": match.group().strip("`"), "kind": kind})
        last = match.end()
    if last < len(text):
        parts.append({"text": text[last:], "kind": "text"})
    return parts


@lru_cache(maxsize=256)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    known = "|".join(re.escape(name) for name in names if name)
    of_names = rf"|(?<![\w.-])(?:{known})(?![\w-])" if known else ""
    return re.compile(rf"(?P<code>{_CODE}{of_names})|(?P<bold>{_BOLD})")
