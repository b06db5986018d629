"""Averages of a run's metrics, kept while they are recorded: of this process, exact, in memory that does not grow."""

from __future__ import annotations

import itertools
import math
from threading import Lock
from typing import Any

from google_cloud_mldiagnostics.finite import json_number

__all__ = ["FOLD_AT", "Average", "Averages"]

FOLD_AT = 512
"""So many values wait to be folded in; whoever adds one more does it."""

_MOST_NAMES = 10_000


class Average:
    """Mean, extremes and last value of one metric.

    `add` is called while recording, from any thread and in signal handlers: it takes no lock, since all it does is to
    append to a queue. Who brings the queue to 512 values, or asks, folds them in.

    Attributes:
        pending: The queue: a hot path appends to it, and calls `fold` when it has `FOLD_AT`.
    """

    __slots__ = ("_count", "_folding", "_last", "_maximum", "_mean", "_minimum", "_not_finite", "pending")

    def __init__(self) -> None:
        self.pending: list[float] = []
        self._folding = Lock()
        self._count = self._not_finite = 0
        self._mean = 0.0
        self._minimum, self._maximum = math.inf, -math.inf
        self._last: float | None = None

    def add(self, value: float) -> None:
        """Takes a value."""
        self.pending.append(value)
        if len(self.pending) >= FOLD_AT:
            self.fold()

    def as_dict(self) -> dict[str, float | int | str]:
        """Returns mean, min, max, last, count, and how many values were not finite, where some were.

        Values that are not finite are counted and may be the last; they spoil neither mean nor extremes.
        """
        self.fold()
        figures: dict[str, float | int | str] = {"count": self._count + self._not_finite}
        if self._count:
            figures |= {"mean": self._mean, "min": self._minimum, "max": self._maximum}
        if self._last is not None:
            figures["last"] = json_number(self._last)
        if self._not_finite:
            figures["not_finite"] = self._not_finite
        return figures

    def fold(self) -> None:
        """Takes what is pending into the figures, unless somebody is at it."""
        if not self._folding.acquire(blocking=False):
            return  # Whoever is at it, perhaps below us on this very stack, takes ours too, or the next one does.
        try:
            while batch := self._take():
                self._fold_batch(batch)
        finally:
            self._folding.release()

    def _take(self) -> list[float]:
        pending = self.pending
        batch = pending[:FOLD_AT]
        del pending[: len(batch)]  # What other threads have appended meanwhile is behind these.
        return batch

    def _fold_batch(self, batch: list[float]) -> None:
        finite = [value for value in batch if math.isfinite(value)]
        self._last = batch[-1]
        self._not_finite += len(batch) - len(finite)
        if not finite:
            return
        count = self._count + len(finite)
        # Each divided before they are added, so that no sum is too large for a float.
        shares = (value / count for value in finite)
        self._mean = math.fsum(itertools.chain((self._mean * (self._count / count),), shares))
        self._count = count
        self._minimum = min(self._minimum, min(finite))
        self._maximum = max(self._maximum, max(finite))


class Averages:
    """The averages of all metrics of a run, by name; of the first 10,000 names."""

    def __init__(self) -> None:
        self._by_name: dict[str, Average] = {}

    def of(self, name: str) -> Average:
        """The average of a metric, a new one at its first value; one that nobody sees where there are too many."""
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_name) >= _MOST_NAMES:
                return Average()
            known = self._by_name.setdefault(name, Average())
        return known

    def add(self, name: str, value: float) -> None:
        """Takes a value of a metric: of one that has several, their mean."""
        self.of(name).add(value)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The figures of each metric: see `Average.as_dict`."""
        return {name: average.as_dict() for name, average in list(self._by_name.items())}
