"""Sends snapshots to Cloud Monitoring, as gauges and at the rate that the service allows.

A gauge that could not be sent is not sent later, since the next snapshot is newer; only `flush`, after the last
snapshot, tries once more.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.credentials import CloudEnvironment, find_cloud
from ml_diagnostics_common.environment import Backend, configured_backend
from ml_diagnostics_common.exceptions import DiagnosticsError, NoCloudError
from ml_diagnostics_common.guard import Counters, log_once, warn_once

from ml_goodput_measurement._export.gauges import Gauge, GaugeKey, event_seconds, gauges_of
from ml_goodput_measurement.exceptions import CloudMonitoringError
from ml_goodput_measurement.gcp_metrics import REQUEST_SECONDS, SERIES_PER_REQUEST, GCPMetrics
from ml_goodput_measurement.metric_details import GCPOptions
from ml_goodput_measurement.snapshot import Snapshot

if TYPE_CHECKING:
    from google.cloud.monitoring_v3 import TimeSeries

__all__ = ["MOST_EVENT_TYPES", "CloudMonitoringExporter"]

MOST_EVENT_TYPES = 100
"""Types of custom events with series of their own, of one exporter; each costs one more for every rolling window."""

_RESOURCE_TYPE = "compute.googleapis.com/Workload"
_NOWHERE = "global"  # Cloud Monitoring takes no resource without a location.
_PERIOD_SECONDS = 5
_FRESH_SECONDS = 15.0  # The deadline of a request that failed, and a period.
_SEARCH_WAITS_SECONDS = (60.0,) * 10  # After the first searches for a cloud;
_LATER_SEARCH_SECONDS = 600.0  # after all later ones.
_SECOND = 1_000_000_000


class CloudMonitoringExporter:
    """Sends snapshots of one job; it searches for a cloud at its first call.

    Attributes:
        counts: Points by result: `written`, `held` (too soon after the last of their series),
            `malformed` (cannot be encoded), `refused_CODE`, `failed_CODE`, `skipped` (in the wait after a failure).
    """

    def __init__(
        self,
        job_name: str,
        options: GCPOptions,
        *,
        include_slice_efficiency: bool = False,
        environ: Mapping[str, str] = os.environ,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Send nothing yet.

        Args:
            job_name: The label `workload_id`.
            options: Project, location, replica, accelerator and cluster if the caller knows them, and whether to send.
                It is only read.
            include_slice_efficiency: True to include the efficiencies of slices, if they are known.
            environ: The environment variables.
            clock_ns: The wall clock, in nanoseconds since the POSIX epoch.
            monotonic: A clock in seconds that does not jump.
            wait: Waits a number of seconds.

        Raises:
            ConfigurationError: `ML_DIAGNOSTICS_BACKEND` is invalid.
        """
        self.counts = Counters()
        self._job_name, self._options = job_name, options
        self._include_slice_efficiency = include_slice_efficiency
        self._environ, self._clock_ns, self._monotonic, self._wait = environ, clock_ns, monotonic, wait
        self._next_search = 0.0 if configured_backend(environ) is not Backend.LOCAL else math.inf
        self._search_waits = iter(_SEARCH_WAITS_SECONDS)
        self._destination: _Destination | None = None
        self._own_events: set[str] = set()
        self._pace = _Pace()
        self._unsent: dict[GaugeKey, tuple[float, Gauge]] = {}
        self._backoff = Backoff(first_seconds=5.0, longest_seconds=60.0)
        self._access_backoff = Backoff(first_seconds=60.0, longest_seconds=600.0)
        self._try_at = self._server_at = 0.0  # By our own backoff, and by the request of a server.

    def __call__(self, snapshot: Snapshot) -> None:
        """Send a snapshot, unless nothing can be sent now. Errors of the cloud are logged, not raised."""
        wanted = self._wanted(snapshot)
        destination = self._found_destination() if wanted else None
        if wanted is None or destination is None:
            return
        self._admit(event_seconds(wanted))
        gauges = gauges_of(
            wanted,
            accelerator_type=destination.accelerator_type,
            cluster_name=destination.cluster_name,
            own_events=self._own_events,
            include_slice_efficiency=self._include_slice_efficiency,
        )
        now = self._monotonic()
        self._unsent.update((gauge.key, (now, gauge)) for gauge in gauges)
        if now < self._try_at:
            self.counts.add("skipped", len(gauges))
            return
        self._send(destination, gauges, REQUEST_SECONDS)

    def flush(self, timeout_seconds: float) -> None:
        """Send the gauges that the last calls could not: too soon after the last points of their series, or failed.

        This is the last try, so it does not wait as after other failures, but only as long as the server asked for.

        Args:
            timeout_seconds: The limit of the wait for the time to send, and for the server.
        """
        start = self._monotonic()
        fresh = [gauge for since, gauge in self._unsent.values() if start - since < _FRESH_SECONDS]
        self._unsent.clear()
        due = max([start, self._server_at, *(self._pace.due(gauge.key) for gauge in fresh)])
        left = start + timeout_seconds - due
        if self._destination is None or not fresh or left <= 0:
            return
        if due > start:
            self._wait(due - start)
        self._send(self._destination, fresh, min(left, REQUEST_SECONDS))

    def close(self) -> None:
        """Close the connection."""
        if self._destination is not None:
            self._destination.metrics.close()

    # --- Contents -----------------------------------------------------------------------------------

    def _wanted(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the snapshot without the parts that the options exclude; None if no part is left."""
        if not self._options.enable_gcp_goodput_metrics:
            snapshot = replace(snapshot, cumulative=None, windows=())
        if not self._options.enable_gcp_step_deviation_metrics:
            snapshot = replace(snapshot, deviation=None)
        return snapshot if snapshot.cumulative or snapshot.deviation or snapshot.windows else None

    def _admit(self, events: Mapping[str, float]) -> None:
        """Assign separate series to new types of events, the longest first, until the maximum is reached."""
        new = sorted(set(events) - self._own_events, key=lambda event: (-events[event], event))
        free = MOST_EVENT_TYPES - len(self._own_events)
        self._own_events.update(new[:free])
        if len(new) > free:
            warn_once(
                ("cloud monitoring", "event types", self._job_name),
                "Job %s has more than %d types of custom events: in Cloud Monitoring those beyond are summed in one "
                "time series. Reports and TensorBoard separate them. Keep numbers and names of files out of types.",
                self._job_name,
                MOST_EVENT_TYPES,
            )

    # --- Sending ----------------------------------------------------------------------------------------

    def _send(self, destination: _Destination, gauges: Sequence[Gauge], timeout_seconds: float) -> None:
        """Send the gauges that are due."""
        now = self._monotonic()
        due = [gauge for gauge in gauges if self._pace.due(gauge.key) <= now]
        if len(due) < len(gauges):
            self.counts.add("held", len(gauges) - len(due))
        failed: DiagnosticsError | None = None
        for first in range(0, len(due), SERIES_PER_REQUEST):
            batch = due[first : first + SERIES_PER_REQUEST]
            ends = {gauge.key: self._pace.end_ns(gauge.key, self._clock_ns()) for gauge in batch}
            self._pace.asked(ends, self._monotonic())
            series = list(self._made(destination, batch, ends))
            if not series:
                continue
            try:
                written = destination.metrics.write(series, timeout_seconds=timeout_seconds)
            except DiagnosticsError as error:
                failed, ends_all = error, _ends_all(error)
                unasked = len(due) - first - len(batch) if ends_all else 0
                self._failed(destination, error, len(series) + unasked)
                if ends_all:
                    break
                continue
            for key in ends:
                self._unsent.pop(key, None)
            if written.accepted:
                # The answer does not name the refused ones; for those, a later point than necessary does no harm. Nor
                # does it for those that were not made.
                self._pace.accepted(ends)
                self.counts.add("written", written.accepted)
            if written.refused:
                self._refused(written.refused, len(series), written.code, written.reason)
        if failed is not None:
            self._back_off(failed)
        elif due:
            self._backoff.succeeded()
            self._access_backoff.succeeded()

    def _made(
        self, destination: _Destination, gauges: Sequence[Gauge], ends: Mapping[GaugeKey, int]
    ) -> Iterator[TimeSeries]:
        """Yield the series of the gauges that can be encoded."""
        for gauge in gauges:
            try:
                yield destination.series(gauge, ends[gauge.key])
            except (TypeError, ValueError, OverflowError) as error:  # A lone surrogate, or a number beyond 64 bits.
                self._unsent.pop(gauge.key, None)
                self.counts.add("malformed")
                warn_once(
                    ("cloud monitoring", "malformed", self._job_name, gauge.metric_type),
                    "A time series of job %s cannot be sent to Cloud Monitoring: %s, %s, value %r (%s). The others are "
                    "sent. Further ones of its type are counted, not logged.",
                    self._job_name,
                    gauge.metric_type,
                    ascii(dict(gauge.labels))[:500],
                    gauge.value,
                    ascii(str(error)),
                )

    def _refused(self, count: int, of: int, code: str, reason: str) -> None:
        self.counts.add(f"refused_{code}", count)
        warn_once(
            ("cloud monitoring", "refused", self._job_name, code),
            "Cloud Monitoring refused points of %d of %d time series of job %s (%s). If they are called too frequent "
            "or out of order, either this job was restarted just now, and all is well, or another monitor reports the "
            "same job: then give each its own replica_id, or let one report. Further refusals are counted, not logged.",
            count,
            of,
            self._job_name,
            reason[:500],
        )

    def _failed(self, destination: _Destination, error: DiagnosticsError, count: int) -> None:
        """Count and log a failed request."""
        code = error.code if isinstance(error, CloudMonitoringError) else type(error).__name__
        self.counts.add(f"failed_{code}", count)
        todo = ""
        if isinstance(error, CloudMonitoringError) and error.access:
            todo = (
                f" {destination.principal or 'The account of this process'} needs the role "
                f"roles/monitoring.metricWriter in project {destination.project}, where the Cloud Monitoring API "
                "must be enabled."
            )
        warn_once(
            ("cloud monitoring", "failed", self._job_name, code),
            "Goodput of job %s cannot be sent to Cloud Monitoring: %s.%s The job goes on, and what it records is kept. "
            "It is tried again, every %s in the end.",
            self._job_name,
            str(error).rstrip("."),
            todo,
            "ten minutes" if _needs_a_person(error) else "minute",
        )

    def _back_off(self, error: DiagnosticsError) -> None:
        """Set when to try again after a failure."""
        asked = error.retry_after_seconds if isinstance(error, CloudMonitoringError) else None
        now = self._monotonic()
        backoff = self._access_backoff if _needs_a_person(error) else self._backoff
        self._try_at = now + backoff.failed(asked)
        self._server_at = now + (asked or 0.0)

    # --- Destination ---------------------------------------------------------------------------------------

    def _found_destination(self) -> _Destination | None:
        """Return the destination; None until it is found.

        It is searched for every minute, ten times, and then every ten minutes. If the metadata server does not return
        all labels, the search has failed.
        """
        now = self._monotonic()
        if self._destination is not None or now < self._next_search:
            return self._destination
        try:
            self._destination = self._new_destination(find_cloud(self._options.project_id, environ=self._environ))
        except DiagnosticsError as error:
            self._next_search = now + next(self._search_waits, _LATER_SEARCH_SECONDS)
            log_once(
                # No cloud is what a user of a laptop expects.
                logging.INFO if isinstance(error, NoCloudError) else logging.WARNING,
                ("cloud monitoring", "no cloud"),
                "Goodput is not sent to Cloud Monitoring: %s. The job goes on, and what it records is kept: 'goodput "
                "report' shows it. The search is repeated every minute, and after ten minutes every ten.",
                str(error).rstrip("."),
            )
        return self._destination

    def _new_destination(self, cloud: CloudEnvironment) -> _Destination:
        """Return a destination; its labels are those of all later points, so none is guessed."""
        from ml_goodput_measurement._export.gcp_metadata import get_accelerator_type, get_cluster_name, get_node_zone

        options = self._options
        return _Destination(
            metrics=GCPMetrics(cloud.project, credentials=cloud.credentials, environ=self._environ),
            project=cloud.project,
            principal=cloud.principal,
            resource_labels={
                "location": str(options.location or get_node_zone(must_answer=True) or _NOWHERE),
                "workload_id": self._job_name,
                "replica_id": str(options.replica_id),
            },
            accelerator_type=str(options.acc_type or get_accelerator_type(must_answer=True)),
            cluster_name=str(options.cluster_name or get_cluster_name(must_answer=True) or ""),
        )


def _needs_a_person(error: DiagnosticsError) -> bool:
    """Return True if a person must fix access, or its settings, first."""
    return error.access if isinstance(error, CloudMonitoringError) else True


def _ends_all(error: DiagnosticsError) -> bool:
    """Return True if a request failed for a reason that is not its content, so the next one would fail, too."""
    return _needs_a_person(error) or (
        isinstance(error, CloudMonitoringError)
        and error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
    )


class _Destination(NamedTuple):
    """The destination of the points, and their labels."""

    metrics: GCPMetrics
    project: str
    principal: str | None
    resource_labels: Mapping[str, str]
    accelerator_type: str
    cluster_name: str

    def series(self, gauge: Gauge, end_ns: int) -> TimeSeries:
        return self.metrics.create_time_series(
            gauge.metric_type,
            gauge.value,
            gauge.value_type,
            dict(gauge.labels),
            _RESOURCE_TYPE,
            self.resource_labels,
            end_ns // _SECOND,
            end_ns % _SECOND,
        )


class _Pace:
    """The times of the next point of each series.

    Cloud Monitoring wants the points of a series in order and five seconds apart. How long ago the last one was is
    measured by a clock that does not jump; a wall clock that was set back is followed slowly, five seconds a point,
    until it has caught up. Only points that were accepted count: those that a wrong clock put into the future were not.
    """

    def __init__(self) -> None:
        self._asked: dict[GaugeKey, float] = {}
        self._end_ns: dict[GaugeKey, int] = {}

    def due(self, key: GaugeKey) -> float:
        """Return when the next point may be sent, by the clock that does not jump."""
        return self._asked.get(key, -math.inf) + _PERIOD_SECONDS

    def end_ns(self, key: GaugeKey, wall_ns: int) -> int:
        """Return the end of a point that is sent now."""
        last = self._end_ns.get(key)
        return wall_ns if last is None else max(wall_ns, last + _PERIOD_SECONDS * _SECOND)

    def asked(self, keys: Mapping[GaugeKey, int], now: float) -> None:
        """Note that points are being sent."""
        self._asked.update(dict.fromkeys(keys, now))

    def accepted(self, ends: Mapping[GaugeKey, int]) -> None:
        """Note the ends of points that the server took."""
        self._end_ns.update(ends)
