"""The parameters of a URL, checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._web.answers import BadQueryError

__all__ = ["GREATEST_WIDTH", "Query", "quoted"]

GREATEST_WIDTH: Final = 4000
_WIDTH: Final = 1200
_LONGEST_SHOWN: Final = 80
_FARTHEST: Final = 1e19
"""Beyond all steps of 64 bits; differences of positions are still finite."""


class Query(Mapping[str, str]):
    """The parameters of a URL by name; each method returns one of them in its type, or raises BadQueryError."""

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self._parameters = dict(parameters or {})

    def __getitem__(self, name: str) -> str:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter as it is."""
        return self._parameters.get(name, default)

    def names(self, name: str) -> list[str]:
        """Return the parts of a parameter with commas, each once."""
        return list(dict.fromkeys(filter(None, self.text(name).split(","))))

    def number(self, name: str, default: float | None = None) -> float | None:
        """Return a finite number."""
        text = self._parameters.get(name, "")
        if not text:
            return default
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise BadQueryError(f"{name} must be a number, got {quoted(text)}")
        return number

    def natural(self, name: str, default: int) -> int:
        """Return a whole number from 0."""
        text = self._parameters.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise BadQueryError(f"{name} must be a whole number from 0, got {quoted(text)}")
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of several words; the first one by default."""
        text = self._parameters.get(name, "") or choices[0]
        if text not in choices:
            raise BadQueryError(f"{name} must be one of {', '.join(choices)}, got {quoted(text)}")
        return text

    def width(self) -> int:
        """Return the width of a drawing, in pixels: 1 to 4000, 1200 by default."""
        width = self.natural("width", _WIDTH)
        if not 1 <= width <= GREATEST_WIDTH:
            raise BadQueryError(f"width must be from 1 to {GREATEST_WIDTH}, got {width}")
        return width

    def span(self) -> tuple[float, float] | None:
        """Return `from` and `to`, in units of the axis (seconds since 1970 on the axis of time).

        Returns:
            None if neither is given; if one is missing, minus or plus infinity instead.
        """
        start, end = self.number("from"), self.number("to")
        if start is None and end is None:
            return None
        for name, position in (("from", start), ("to", end)):
            if position is not None and abs(position) > _FARTHEST:
                raise BadQueryError(f"{name} must be a time or a step up to {_FARTHEST:g}, got {position:g}")
        span = (-math.inf if start is None else start, math.inf if end is None else end)
        if span[0] >= span[1]:
            raise BadQueryError(f"from must be less than to, got {span[0]:g} and {span[1]:g}")
        return span


def quoted(text: str) -> str:
    """Return a foreign text in quotes, for a sentence: on one line, and short."""
    return repr(one_line(text, _LONGEST_SHOWN))
