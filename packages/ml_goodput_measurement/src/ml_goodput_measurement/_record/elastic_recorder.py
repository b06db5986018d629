"""ElasticGoodputRecorder: a recorder of jobs with a changing number of slices."""

from __future__ import annotations

from ml_diagnostics_common import progress
from ml_diagnostics_common.guard import guarded
from ml_diagnostics_common.payload import encode_text

from ml_goodput_measurement._record.recorder import GoodputRecorder, Moment

__all__ = ["ElasticGoodputRecorder"]


class ElasticGoodputRecorder(GoodputRecorder):
    """Record the activities of an elastic job: a `GoodputRecorder` that also records slices."""

    @guarded
    def record_elastic_slice_counts(
        self, active_slices: int, total_slices: int, available_slices: int, timestamp: Moment = None
    ) -> None:
        """Record the numbers of slices, which are valid until the next such record.

        Args:
            active_slices: Slices that train.
            total_slices: Slices that the job wants.
            available_slices: Slices that are available.
            timestamp: The time.
        """
        if self._enabled:
            counts = f'"active_slices":{int(active_slices)},"total_slices":{int(total_slices)},'
            details = f'{counts}"available_slices":{int(available_slices)},'
            self._record("elastic_slice_counts_timestamp", timestamp, details)

    @guarded
    def record_elastic_wait_start_time(self, event_type: str, start_time: Moment = None) -> None:
        """Record that the job starts to wait for slices.

        Args:
            event_type: The reason; with `scale_up` in it the wait is for more slices, else for one that failed.
            start_time: The time.
        """
        progress.publish("wait", self._last_step)
        if self._enabled:
            details = f'"elastic_wait_event_type":{encode_text(str(event_type))},'
            self._record("elastic_wait_start_time", start_time, details)

    @guarded
    def record_elastic_wait_end_time(self, event_type: str, end_time: Moment = None) -> None:
        """Record that the job no longer waits for slices.

        Args:
            event_type: The reason that was recorded at the start.
            end_time: The time.
        """
        self._publish_return()
        if self._enabled:
            details = f'"elastic_wait_event_type":{encode_text(str(event_type))},'
            self._record("elastic_wait_end_time", end_time, details)

    @guarded
    def record_elastic_reinit_start_time(self, start_time: Moment = None) -> None:
        """Record that the job starts to initialize itself again, for other slices than before."""
        progress.publish("init", self._last_step)
        if self._enabled:
            self._record("elastic_reinit_start_time", start_time)

    @guarded
    def record_elastic_reinit_end_time(self, end_time: Moment = None) -> None:
        """Record that the job is initialized again."""
        progress.publish("compile", self._last_step)
        if self._enabled:
            self._record("elastic_reinit_end_time", end_time)


# Pickles contain the public name.
ElasticGoodputRecorder.__module__ = "ml_goodput_measurement.goodput_elastic"
