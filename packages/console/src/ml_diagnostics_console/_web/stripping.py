"""Strip comments and whitespace from scripts and style sheets. Pure.

`rjsmin` does not know that a template literal can hold others: what stands in the inner ones would be stripped as code.
So template literals are put aside as a whole before it runs, and put back afterwards, as they were.
"""

from __future__ import annotations

import re
from typing import Final

import rcssmin
import rjsmin

__all__ = ["stripped_script", "stripped_style"]

_TEXTS: Final = r"""
    "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
    | //[^\n]* | /\*.*?\*/
    | (?:[(,=:\[!&|?{;+\-*%<>~^] | \b(?:return|typeof|case) | ^) \s*
      /(?![/*])(?:[^/\\\[\n] | \\. | \[(?:[^\]\\\n]|\\.)*\])+/
"""
"""Texts, comments and regular expressions: what may hold a backtick or a brace that is none. A slash begins a regular
expression where no operand stands before it."""
_PIECE: Final = re.compile(rf"{_TEXTS} | `", re.VERBOSE | re.DOTALL | re.MULTILINE)
_PIECE_OF_HOLE: Final = re.compile(rf"{_TEXTS} | [`{{}}]", re.VERBOSE | re.DOTALL | re.MULTILINE)
_PIECE_OF_TEMPLATE: Final = re.compile(r"\\.|\$\{|`", re.DOTALL)
_MARK: Final = "\ue000"
"""A character of the private use area: no script has it."""
_ASIDE: Final = re.compile(f'"{_MARK}(\\d+){_MARK}"')


def stripped_script(text: str) -> str:
    """Return a script without comments, indentation and spaces that mean nothing; names stay.

    Raises:
        ValueError: A template literal does not end, or the script has a character that stands for one.
    """
    if _MARK in text:
        raise ValueError("the script has a character of the private use area")
    aside: list[str] = []
    parts: list[str] = []
    done = at = 0
    while (found := _PIECE.search(text, at)) is not None:
        at = found.end()
        if found[0] == "`":
            start, at = found.start(), _end_of_template(text, at)
            parts += [text[done:start], f'"{_MARK}{len(aside)}{_MARK}"']
            aside.append(text[start:at])
            done = at
    stripped = rjsmin.jsmin("".join([*parts, text[done:]]))
    return _ASIDE.sub(lambda found: aside[int(found[1])], str(stripped))


def stripped_style(text: str) -> str:
    """Return a style sheet without comments and spaces that mean nothing."""
    return str(rcssmin.cssmin(text))


def _end_of_template(text: str, at: int) -> int:
    """Return the end of the template literal with its backtick before a position."""
    while (found := _PIECE_OF_TEMPLATE.search(text, at)) is not None:
        at = found.end()
        if found[0] == "`":
            return at
        if found[0] == "${":
            at = _end_of_hole(text, at)
    raise ValueError("a template literal does not end")


def _end_of_hole(text: str, at: int) -> int:
    """Return the end of the expression in a template literal with its brace before a position."""
    depth = 1
    while depth and (found := _PIECE_OF_HOLE.search(text, at)) is not None:
        at = found.end()
        if found[0] == "`":
            at = _end_of_template(text, at)
        elif found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
        elif found[0].startswith("{"):
            depth += 1  # A regular expression right behind a brace.
    if depth:
        raise ValueError("an expression in a template literal does not end")
    return at
