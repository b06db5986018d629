"""GoodputExclusion: the queries of a calculator for goodput without some stretches of time."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ml_goodput_measurement._record.arguments import nanoseconds
from ml_goodput_measurement.exclusion_utils import ExclusionInterval, normalize_intervals
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger import Summary
    from ml_goodput_measurement.metric_details import UnproductiveTimeDict

__all__ = ["ExclusionInterval", "GoodputExclusion", "excluded_intervals"]


class GoodputExclusion(abc.ABC):
    """The part of `GoodputCalculator` that answers with exclusions."""

    @abc.abstractmethod
    def _query(
        self, configured_ideal_step_time: float | None = None, excluded: Sequence[tuple[int, int]] = ()
    ) -> Summary:
        """Read new entries, and return the sums of the job's life."""

    @abc.abstractmethod
    def _badput_percent(self, part: Summary) -> UnproductiveTimeDict:
        """Return badput by kind, in percent of the counted time."""

    def get_job_goodput_with_exclusions(
        self,
        exclusion_intervals: Iterable[ExclusionInterval],
        include_badput_breakdown: bool = False,
        configured_ideal_step_time: float | None = None,
    ) -> tuple[float, UnproductiveTimeDict, int, float]:
        """Read new entries, and return the job's goodput without some stretches of its time.

        Excluded time is subtracted from the activities that it overlaps, and from the whole that percentages refer to.
        Steps, disruptions and the startup of attempts are those of the whole history.

        Args:
            exclusion_intervals: Pairs of datetimes, in any order; time in several of them counts once. A value that
                is not such a pair is skipped with a WARNING.
            include_badput_breakdown: True to fill the breakdown.
            configured_ideal_step_time: See `get_job_goodput`.

        Returns:
            Goodput in percent of the time that is not excluded, badput likewise by kind, the last step that is done and
            was kept, and the excluded seconds within the job's life.

        Raises:
            ConfigurationError: `configured_ideal_step_time` is not a number of seconds.
            NoGoodputError: Nothing was recorded for the job, or nothing is left; also a ValueError.
        """
        summary = self._query(configured_ideal_step_time, excluded_intervals(exclusion_intervals))
        breakdown = self._badput_percent(summary) if include_badput_breakdown else {}
        return summary.goodput_percent, breakdown, summary.last_step, summary.buckets[Bucket.EXCLUDED] / 1e9


def excluded_intervals(intervals: Iterable[ExclusionInterval]) -> list[tuple[int, int]]:
    """Return exclusions as arguments of the ledger: in nanoseconds, in order, disjoint."""
    return [(nanoseconds(start), nanoseconds(end)) for start, end in normalize_intervals(intervals)]
