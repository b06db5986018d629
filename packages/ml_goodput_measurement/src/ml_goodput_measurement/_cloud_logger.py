"""`goodput._CloudLogger` of the public package, and its keys of payloads.

Recorders and calculators of this package do not use it: they access the journal and Cloud Logging directly.
"""

from __future__ import annotations

import datetime
import threading
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.guard import guarded
from ml_diagnostics_common.log_source import Cloud

from ml_goodput_measurement._query.payloads import OwnLogger
from ml_goodput_measurement._query.sources import open_source
from ml_goodput_measurement._record.arguments import RebuiltFromArguments, nanoseconds, retention_ns
from ml_goodput_measurement._record.recorder import GoodputRecorder

__all__ = ["_CloudLogger"]

_JOB_NAME = "job_name"
_JOB_START_TIME = "job_start_time"
_JOB_END_TIME = "job_end_time"
_STEP_COUNT = "step_count"
_STEP_START_TIME = "step_start_time"
_TPU_INIT_START_TIME = "tpu_init_start_time"
_TPU_INIT_END_TIME = "tpu_init_end_time"
_TRAINING_PREPARATION_START_TIME = "training_prep_start_time"
_TRAINING_PREPARATION_END_TIME = "training_prep_end_time"
_DATA_LOADING_START_TIME = "data_loading_start_time"
_DATA_LOADING_END_TIME = "data_loading_end_time"
_CUSTOM_BADPUT_EVENT_TYPE = "custom_badput_event_type"
_CUSTOM_BADPUT_EVENT_START_TIME = "custom_badput_event_start_time"
_CUSTOM_BADPUT_EVENT_END_TIME = "custom_badput_event_end_time"

_LAST = "\U0010ffff"
"""Sorts behind all ids of one moment."""


class _CloudLogger(RebuiltFromArguments, OwnLogger):
    """Write and read the payloads of one job: in the journal, and in Cloud Logging if there is one."""

    def __init__(
        self,
        job_name: str,
        log_name: str,
        max_logs_retention_period: datetime.timedelta | float | None = None,
        *,
        background_grace_period_s: float = 5.0,
        background_batch_size: int = 100,
        background_max_latency_s: float = 2.0,
    ) -> None:
        """Open nothing, and wait for nothing.

        Args:
            job_name: The job.
            log_name: Its log.
            max_logs_retention_period: The period of a read without a start: a timedelta, or seconds; None for no limit.
            background_grace_period_s: See `GoodputRecorder`; also the next two.
            background_batch_size: Entries.
            background_max_latency_s: Seconds.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, is not valid.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self._recorder = GoodputRecorder(
            job_name,
            log_name,
            True,
            background_grace_period_s=background_grace_period_s,
            background_batch_size=background_batch_size,
            background_max_latency_s=background_max_latency_s,
        )
        self.job_name = self._recorder.job_name
        self.log_name = self._recorder.logger_name
        self.retention_ns = retention_ns(max_logs_retention_period)
        self._source = open_source(self.log_name, cloud=Cloud.configured(), job_name=self.job_name)
        self._entries: list[LogEntry] = []
        self._lock = threading.Lock()
        self._remember(_CloudLogger, arguments, names_before)

    @guarded
    def write_cloud_logging_entry(self, entry: Mapping[str, Any] | None) -> None:
        """Write a payload; ignore None, and payloads of other jobs."""
        if entry is not None and entry.get(_JOB_NAME) == self.job_name:
            self._recorder.record_payload(entry)

    def read_cloud_logging_entries(
        self,
        start_time: datetime.datetime | None = None,
        end_time: datetime.datetime | None = None,
        last_entry_info: tuple[datetime.datetime, str] | None = None,
    ) -> tuple[list[dict[str, Any]], tuple[datetime.datetime | None, str | None]]:
        """Return the job's payloads in the order in which they were written.

        Args:
            start_time: Exclude entries until this time; naive is local time. None: `max_logs_retention_period` ago.
            end_time: Exclude entries after this time; None: now.
            last_entry_info: The result of an earlier call: read on from there; `start_time` is ignored.

        Returns:
            The payloads, and (timestamp, id) of the last of them; (None, None) without payloads.
        """
        with self._lock:
            for entries in self._source.read_new():
                self._entries += [entry for entry in entries if entry.payload.get(_JOB_NAME) == self.job_name]
            self._entries.sort(key=_order)
            found = self._entries[bisect_right(self._entries, self._after(start_time, last_entry_info), key=_order) :]
        if end_time is not None:
            found = found[: bisect_right(found, (nanoseconds(end_time), _LAST), key=_order)]
        if not found:
            return [], (None, None)
        return [entry.payload for entry in found], (_datetime(found[-1]), found[-1].insert_id)

    def flush(self) -> None:
        """Send all written entries; see `GoodputRecorder.flush`."""
        self._recorder.flush()

    def _after(
        self, start_time: datetime.datetime | None, last_entry_info: tuple[datetime.datetime | None, str | None] | None
    ) -> tuple[int, str]:
        if last_entry_info is not None and last_entry_info[0] is not None:
            return nanoseconds(last_entry_info[0]), last_entry_info[1] or ""
        if start_time is not None:
            return nanoseconds(start_time), _LAST
        if self.retention_ns is None:
            return -1, ""
        return nanoseconds(datetime.datetime.now(datetime.timezone.utc)) - self.retention_ns, ""


def _order(entry: LogEntry) -> tuple[int, str]:
    """Return when an entry was written, to the microsecond like a datetime, and its id."""
    return entry.timestamp_ns // 1000 * 1000, entry.insert_id


def _datetime(entry: LogEntry) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return epoch + datetime.timedelta(microseconds=entry.timestamp_ns // 1000)
