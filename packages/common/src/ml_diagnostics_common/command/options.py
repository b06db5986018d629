"""Types of options. Invalid values are rejected before the command does anything."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["add_plot_options", "picture", "port", "seconds", "whole_number"]

_LONGEST_SECONDS: Final = 1e9
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PICTURE: Final = "plot.png"
_PICTURES: Final = (".png", ".svg", ".pdf")


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
    """Parse a duration: a number of seconds, or one with a unit, such as 90s, 30m, 2h, 7d."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        # float() also accepts spaces, and digits of other scripts.
        value = float(number) * _UNITS[unit] if number.isascii() and number == number.strip() else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: give seconds, or one such as 30m, 2h, 7d")
    return value


def picture(name: str) -> Path:
    """Parse the name of a picture's file, with a suffix of a format that can be drawn."""
    from pathlib import Path

    path = Path(name)
    if path.suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(f"expected a file name that ends in {', '.join(_PICTURES)}, got {name!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name!r}: the folder {path.parent} does not exist; create it first")
    return path


def add_plot_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options `--plot` and `--dark` of a command that draws something."""
    parser.add_argument(
        "--plot",
        nargs="?",
        const=_PICTURE,  # A text, so that `type` applies to it.
        metavar="FILE.png",
        type=picture,
        help=f"also draw {what}, to {_PICTURE} or this file (needs the extra [plot]); or .svg, .pdf",
    )
    parser.add_argument("--dark", action="store_true", help="draw it light on dark")
