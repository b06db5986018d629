"""Robust statistics of hosts and of series: medians, outliers and changes of level. Pure.

Outliers: the modified z-score, 0.6745 (x - median) / MAD above 3.5 (B. Iglewicz, D. Hoaglin, "How to Detect and Handle
Outliers", 1993). Changes: A. N. Pettitt, "A Non-Parametric Approach to the Change-Point Problem", Applied Statistics
28(2), 1979: of all splits, the one at which the ranks before and after differ most, with its approximate significance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

__all__ = [
    "LEAST_SCORE",
    "LEAST_SPREAD",
    "LEAST_VALUES",
    "SIGNIFICANCE",
    "Change",
    "Outlier",
    "high_outliers",
    "last_change",
]

LEAST_SCORE: Final = 3.5
SIGNIFICANCE: Final = 0.01
_OF_NORMAL: Final = 0.6745
"""The MAD of a normal distribution with a deviation of 1."""
LEAST_SPREAD: Final = 0.02
"""Equal hosts may have equal values: a spread of less than 2 % of the median counts as 2 %."""
LEAST_VALUES: Final = 4
"""With three values, the median of the others is one of two."""


class Outlier(NamedTuple):
    """One value that stands apart from the others, above them."""

    name: str
    value: float
    median: float
    """The median of all values."""
    score: float


def high_outliers(values: Mapping[str, float], *, least_ratio: float) -> list[Outlier]:
    """Return the values that stand apart from the others, above them, the highest first.

    Args:
        values: A value of each host, at least four.
        least_ratio: The least ratio to the median.
    """
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    if len(finite) < LEAST_VALUES:
        return []
    middle = median(finite.values())
    spread = max(median(abs(value - middle) for value in finite.values()), LEAST_SPREAD * abs(middle))
    if middle <= 0 or spread <= 0:
        return []
    found = [
        Outlier(name, value, middle, _OF_NORMAL * (value - middle) / spread)
        for name, value in finite.items()
        if value >= least_ratio * middle
    ]
    return sorted((each for each in found if each.score > LEAST_SCORE), key=lambda each: -each.value)


class Change(NamedTuple):
    """A change of the level of a series."""

    start: int
    """The index of the first value of the new level."""
    before: float
    """The median of the level before."""
    after: float
    significance: float
    """The probability of such a split in a series without a change, about."""


def last_change(values: Sequence[float]) -> Change | None:
    """Return the last change of level of a series; None if its level does not change significantly."""
    start, found = 0, None
    while (change := _change(values[start:])) is not None:
        found = change._replace(start=start + change.start)
        start = found.start
    return found


def _change(values: Sequence[float]) -> Change | None:
    """Return the strongest change of a series; None if it is not significant."""
    count = len(values)
    if count < 2:
        return None
    total, largest, index = 0.0, 0.0, 0
    for number, rank in enumerate(_ranks(values), 1):
        total += 2 * rank - (count + 1)
        if abs(total) > largest and number < count:
            largest, index = abs(total), number
    significance = min(1.0, 2 * math.exp(-6 * largest**2 / (count**3 + count**2)))
    if not index or significance >= SIGNIFICANCE:
        return None
    return Change(index, median(values[:index]), median(values[index:]), significance)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1; equal values have the mean of theirs."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in range(start, end):
            ranks[order[position]] = (start + end + 1) / 2
        start = end
    return ranks
