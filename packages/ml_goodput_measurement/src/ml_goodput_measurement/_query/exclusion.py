"""Goodput without some stretches of time: a holiday of the cluster, a planned stop, a night of debugging."""

from __future__ import annotations

import abc
import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ml_goodput_measurement._query.results import counted_ns, goodput_percent
from ml_goodput_measurement._record.arguments import nanoseconds
from ml_goodput_measurement.exclusion_utils import normalize_intervals
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger import Summary
    from ml_goodput_measurement.metric_details import UnproductiveTimeDict

__all__ = ["ExclusionInterval", "GoodputExclusion", "excluded_intervals"]

ExclusionInterval = tuple[datetime.datetime, datetime.datetime]
"""Start and end; naive ones are local time."""


class GoodputExclusion(abc.ABC):
    """The part of `GoodputCalculator` that answers with exclusions."""

    @abc.abstractmethod
    def _query(
        self, configured_ideal_step_time: float | None = None, excluded: Sequence[tuple[int, int]] = ()
    ) -> Summary:
        """Read what is new, and return the sums of the job's life."""

    @abc.abstractmethod
    def _badput(self, part: Summary, unit_ns: float) -> UnproductiveTimeDict:
        """Return badput by kind, in units of so many nanoseconds."""

    def get_job_goodput_with_exclusions(
        self,
        exclusion_intervals: Iterable[ExclusionInterval],
        include_badput_breakdown: bool = False,
        configured_ideal_step_time: float | None = None,
    ) -> tuple[float, UnproductiveTimeDict, int, float]:
        """Read what is new, and return the job's goodput without some stretches of its time.

        Excluded time is taken out of whatever it lies in, and out of the whole of which shares are taken; what is left
        is as it was. Steps, disruptions and the startup of attempts are those of the whole history.

        Args:
            exclusion_intervals: Pairs of datetimes, in any order; where they overlap they count once. One that is no
                such pair is skipped with a WARNING.
            include_badput_breakdown: Whether the breakdown is filled.
            configured_ideal_step_time: As in `get_job_goodput`.

        Returns:
            Goodput in percent of what is not excluded, badput likewise by kind, the last step that is done and was
            kept, and the excluded seconds that lie in the job's life.

        Raises:
            ConfigurationError: `configured_ideal_step_time` is not a number of seconds.
            NoGoodputError: Nothing was recorded for the job, or nothing is left; also a ValueError.
        """
        summary = self._query(configured_ideal_step_time, excluded_intervals(exclusion_intervals))
        breakdown = self._badput(summary, counted_ns(summary) / 100) if include_badput_breakdown else {}
        return goodput_percent(summary), breakdown, summary.last_step, summary.buckets[Bucket.EXCLUDED] / 1e9


def excluded_intervals(intervals: Iterable[ExclusionInterval]) -> list[tuple[int, int]]:
    """Return exclusions as the ledger takes them: in nanoseconds, in order, disjoint."""
    return [(nanoseconds(start), nanoseconds(end)) for start, end in normalize_intervals(intervals)]


# Pickles contain the public names.
GoodputExclusion.__module__ = "ml_goodput_measurement.goodput_exclusion"
