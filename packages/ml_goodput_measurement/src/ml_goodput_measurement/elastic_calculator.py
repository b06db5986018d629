"""ElasticGoodputCalculator: the figures of a job whose slices come and go."""

from __future__ import annotations

from typing import cast

from ml_goodput_measurement._ledger import Summary, Window
from ml_goodput_measurement._record.arguments import Moment
from ml_goodput_measurement.calculator import GoodputCalculator
from ml_goodput_measurement.metric_details import ElasticIntervalWorkloadMetricDetails, ElasticWorkloadMetricDetails

__all__ = ["ElasticGoodputCalculator"]


class ElasticGoodputCalculator(GoodputCalculator):
    """Computes the goodput of an elastic job.

    Waiting for slices and initialising again are three kinds of badput, which are always there. The details also tell
    the slice efficiencies: means over time, from the first report of slices on, of the slices that trained
    (`stepping_slice_efficiency`) and that were there (`available_slice_efficiency`), as shares of all; 0.0 where
    nobody reported any.
    """

    _is_elastic = True

    def get_job_goodput_details(self) -> ElasticWorkloadMetricDetails:
        """Return what `GoodputCalculator.get_job_goodput_details` does, and the slice efficiencies."""
        with self._lock:
            details = super().get_job_goodput_details()
            return cast(ElasticWorkloadMetricDetails, {**details, **_efficiencies(self._summary)})

    def get_interval_metric_details(
        self, interval_start: Moment, interval_end: Moment
    ) -> ElasticIntervalWorkloadMetricDetails:
        """Return what `GoodputCalculator.get_interval_metric_details` does, and the slice efficiencies."""
        return cast(
            ElasticIntervalWorkloadMetricDetails, super().get_interval_metric_details(interval_start, interval_end)
        )

    def _interval_details(self, window: Window | None) -> ElasticIntervalWorkloadMetricDetails:
        return cast(
            ElasticIntervalWorkloadMetricDetails, {**super()._interval_details(window), **_efficiencies(window)}
        )


def _efficiencies(part: Summary | Window | None) -> dict[str, float]:
    stepping, available = (part.slice_shares if part is not None else None) or (0.0, 0.0)
    return {"stepping_slice_efficiency": stepping, "available_slice_efficiency": available}
