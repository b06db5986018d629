"""Numbers that options take; what is none is refused with a sentence, before anything is done."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["port", "seconds", "whole_number"]

_MOST_SECONDS = 86_400.0


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Returns what argparse reads a whole number with.

    Args:
        least: The least that is taken.
        most: The most.
    """

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


port = whole_number(1, 65535)
"""Reads the number of a port."""


def seconds(text: str) -> float:
    """Reads how long to wait: more than nothing, a day at most."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {_MOST_SECONDS:g}")
    return value
