"""Texts of a picture that matplotlib has written as SVG."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["texts_by_color"]

_TEXT = re.compile(r'<g id="text_\d+">\s*<!-- *(.+?) -->\s*<g (?:style="fill: (#\w+)[^"]*" )?transform')


def texts_by_color(svg: Path) -> dict[str, set[str]]:
    """Return the texts of a picture by their color, in which black is an empty name."""
    found: dict[str, set[str]] = {}
    for text, color in _TEXT.findall(svg.read_text()):
        found.setdefault(color, set()).add(text)
    return found
