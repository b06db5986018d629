"""Types of numeric options. Invalid values are rejected before the command does anything."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["port", "seconds", "whole_number"]

_MOST_SECONDS = 86_400.0


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers.

    Args:
        least: The smallest valid number.
        most: The largest valid number.
    """

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


port = whole_number(1, 65535)
"""Parse a port number."""


def seconds(text: str) -> float:
    """Parse a duration in seconds: more than 0, and at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {_MOST_SECONDS:g}")
    return value
