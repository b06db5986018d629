"""GoodputMonitor: the calls of a trainer that uploads its goodput while it runs."""

from __future__ import annotations

import datetime
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import guarded_as, job_logger, log_once

from ml_goodput_measurement._monitor.settings import MonitorSettings, Upload, checked_windows
from ml_goodput_measurement._record.arguments import RebuiltFromArguments
from ml_goodput_measurement.metric_details import GCPOptions

if TYPE_CHECKING:
    from ml_goodput_measurement._monitor.uploaders import Uploaders

__all__ = ["ElasticGoodputMonitor", "GoodputMonitor"]

_log = job_logger("ml_diagnostics.goodput")

_starting = guarded_as("start its upload")
_stopping = guarded_as("end its upload with a last point")

_PathLike = str | os.PathLike[str]


class GoodputMonitor(RebuiltFromArguments):
    """Uploads a job's goodput, badput and step deviation to TensorBoard and Cloud Monitoring while the job runs.

    One helper process does all uploads. It starts with the first upload and ends with the last, or with the trainer.
    Its failures neither raise in the trainer nor delay it. A monitor that is not enabled does nothing. A copy, and a
    restored pickle, is a new monitor without uploads.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: _PathLike,
        upload_interval: float,
        monitoring_enabled: bool = False,
        pathway_enabled: bool = False,
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        configured_ideal_step_time: float | None = None,
        step_deviation_interval_seconds: float = 10,
        gcp_options: GCPOptions = GCPOptions(),  # noqa: B008 - never changed, copied where it is kept
        skip_final_flush: bool = False,
        final_flush_timeout_seconds: float | None = 10,
        gcs_sync_interval_seconds: float = 3600,
        cache_dir: _PathLike = "/tmp",
        max_logs_retention_period: datetime.timedelta | float | None = None,
    ) -> None:
        """Check the arguments; start nothing, and do not search for a cloud.

        Args:
            job_name: The job's name, the same as its recorder's.
            logger_name: The log's name, the same as the recorder's.
            tensorboard_dir: Folder of the job's TensorBoard logs, local or `gs://bucket/folder`. In a bucket, it also
                holds the calculator's saved state.
            upload_interval: Seconds between two uploads of goodput, and of rolling windows.
            monitoring_enabled: False on all hosts but one.
            pathway_enabled: Accepted for existing callers; it has no effect.
            include_badput_breakdown: True to upload badput by its causes.
            include_step_deviation: True to permit uploads of step deviation.
            configured_ideal_step_time: Seconds, instead of the mean of the steps that are not anomalous.
            step_deviation_interval_seconds: Seconds between two uploads of step deviation.
            gcp_options: The metrics that are sent to Cloud Monitoring, and their labels.
            skip_final_flush: True to stop uploads without a last point.
            final_flush_timeout_seconds: How long stopping an upload waits for its last point; stops within a minute
                share it. None waits for an hour at most.
            gcs_sync_interval_seconds: Seconds between two copies of the saved state to the bucket;
                `ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS` overrides it.
            cache_dir: Folder of the saved state, see `GoodputCalculator`; `ML_GOODPUT_CACHE_DIR` overrides it.
            max_logs_retention_period: How far back Cloud Logging is read: a timedelta, or seconds; None reads it all.

        Raises:
            ConfigurationError: An argument, or one of the variables, is invalid. Not if monitoring is disabled.
        """
        arguments = dict(locals())
        self._prepare(GoodputMonitor, arguments)

    def _prepare(self, kind: type[GoodputMonitor], arguments: dict[str, Any]) -> None:
        names_before = frozenset(vars(self))
        self._uploaders: Uploaders | None = None
        if arguments["monitoring_enabled"]:
            from ml_goodput_measurement._monitor.uploaders import Uploaders  # Only one host of a job needs it.

            self._settings = MonitorSettings.checked(arguments, is_elastic=kind is ElasticGoodputMonitor)
            if sys.platform == "win32":
                log_once(
                    logging.WARNING,
                    "no monitor on Windows",
                    "GoodputMonitor uploads nothing on Windows: its helper process needs Unix. See `goodput report`.",
                )
            else:
                self._uploaders = Uploaders(self._settings)
        self._remember(kind, arguments, names_before)

    @_starting
    def start_goodput_uploader(self) -> None:
        """Start to upload goodput, every `upload_interval`; return immediately."""
        self._start(Upload.CUMULATIVE)

    @_stopping
    def stop_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Upload goodput once more, and stop.

        Args:
            skip_final_flush: True stops without a last point; None uses the constructor's argument.
        """
        self._stop(Upload.CUMULATIVE, skip_final_flush)

    @_starting
    def start_step_deviation_uploader(self) -> None:
        """Start to upload step deviation, every `step_deviation_interval_seconds`, if it is included."""
        if self._uploaders is None or not self._settings.include_step_deviation:
            log_once(
                logging.INFO,
                "step deviation is off",
                "Step deviation is not uploaded: monitoring_enabled or include_step_deviation of the monitor is False",
            )
            return
        self._start(Upload.DEVIATION)

    @_stopping
    def stop_step_deviation_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Upload step deviation once more, and stop.

        Args:
            skip_final_flush: True stops without a last point; None uses the constructor's argument.
        """
        self._stop(Upload.DEVIATION, skip_final_flush)

    @_starting
    def start_rolling_window_goodput_uploader(self, rolling_windows_seconds: list[int]) -> None:
        """Start to upload the goodput of the latest hours or days to Cloud Monitoring, every `upload_interval`.

        Args:
            rolling_windows_seconds: The lengths of the windows, in whole seconds above zero. An invalid list is logged
                as an error, and changes nothing.
        """
        if self._uploaders is None:
            return
        try:
            windows = checked_windows(rolling_windows_seconds)
        except ConfigurationError as error:
            _log.error("The rolling windows stay as they were: %s", error)
            return
        self._uploaders.start(Upload.WINDOWS, windows)

    @_stopping
    def stop_rolling_window_goodput_uploader(self, skip_final_flush: bool | None = None) -> None:
        """Upload the rolling windows once more, and stop.

        Args:
            skip_final_flush: True stops without a last point; None uses the constructor's argument.
        """
        self._stop(Upload.WINDOWS, skip_final_flush)

    def _start(self, upload: Upload) -> None:
        if self._uploaders is not None:
            self._uploaders.start(upload)

    def _stop(self, upload: Upload, skip_final_flush: bool | None) -> None:
        if self._uploaders is not None:
            is_skipped = self._settings.skip_final_flush if skip_final_flush is None else skip_final_flush
            self._uploaders.stop(upload, flush=not is_skipped)


class ElasticGoodputMonitor(GoodputMonitor):
    """A `GoodputMonitor` for jobs that continue with fewer slices when some are lost."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: _PathLike,
        upload_interval: float,
        monitoring_enabled: bool = False,
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        include_slice_efficiency: bool = False,
        configured_ideal_step_time: float | None = None,
        step_deviation_interval_seconds: float = 10,
        gcp_options: GCPOptions = GCPOptions(),  # noqa: B008 - never changed, copied where it is kept
        skip_final_flush: bool = False,
        final_flush_timeout_seconds: float | None = 10,
        gcs_sync_interval_seconds: float = 3600,
        cache_dir: _PathLike = "/tmp",
        max_logs_retention_period: datetime.timedelta | float | None = None,
    ) -> None:
        """Check the arguments, which are those of `GoodputMonitor` with two differences.

        `pathway_enabled` is missing: these jobs all use Pathways. With `include_slice_efficiency`, the monitor also
        uploads how many of the slices trained, and how many were present.
        """
        arguments = dict(locals())
        self._prepare(ElasticGoodputMonitor, arguments)
