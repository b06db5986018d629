"""Numbers of which some are NaN or infinite: for these, JSON has no number, and means have no use."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["json_number", "mean_of_finite", "not_finite_text"]


def not_finite_text(number: float) -> str:
    """What stands in JSON for a number that it has not."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def json_number(number: float) -> float | str:
    """The number as JSON has it: itself, if it is finite, else a text."""
    return number if math.isfinite(number) else not_finite_text(number)


def mean_of_finite(numbers: Sequence[float]) -> float:
    """The mean of those that are finite; of none, the last.

    Args:
        numbers: At least one.
    """
    finite = [number for number in numbers if math.isfinite(number)]
    # Each divided before they are added, so that no sum is too large for a float.
    return math.fsum(number / len(finite) for number in finite) if finite else numbers[-1]
