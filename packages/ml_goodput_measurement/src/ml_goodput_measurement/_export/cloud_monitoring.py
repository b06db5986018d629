"""A snapshot as gauges of Cloud Monitoring, sent at the rate that the service allows.

Types and labels are those of the public package ml-goodput-measurement, so its dashboards keep working; see
docs/reference/wire-format.md. The only difference: `performance` is the ideal step time and nothing else.

A gauge that could not be sent is not sent later, since the next snapshot is newer; only `flush`, after the last
snapshot, tries once more.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.credentials import CloudEnvironment, find_cloud
from ml_diagnostics_common.environment import Backend, configured_backend
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import Counters, warn_once

from ml_goodput_measurement.exceptions import CloudMonitoringError
from ml_goodput_measurement.gcp_metrics import REQUEST_SECONDS, SERIES_PER_REQUEST, GCPMetrics, ValueType
from ml_goodput_measurement.metric_details import (
    ACTIVITY_EXCLUSION_LIST,
    BadputType,
    GCPOptions,
    GoodputType,
    MonitoringWindowType,
    UnproductiveTimeDict,
)
from ml_goodput_measurement.snapshot import Cumulative, RollingWindow, SliceEfficiency, Snapshot

if TYPE_CHECKING:
    from google.cloud.monitoring_v3 import TimeSeries

__all__ = [
    "OTHER_EVENTS",
    "CloudMonitoringExporter",
    "Gauge",
    "cloud_monitoring_exporter",
    "event_seconds",
    "gauges_of",
]

OTHER_EVENTS = "ALL_OTHER_TYPES"
"""The event type under which those are summed that have no series of their own."""

_PREFIX = "compute.googleapis.com/workload/"
_EVENTS = BadputType.CUSTOM_BADPUT_EVENTS.name
_LONGEST_LABEL = 1024
_CUMULATIVE, _INTERVAL = MonitoringWindowType.CUMULATIVE.name, MonitoringWindowType.INTERVAL.name


class Gauge(NamedTuple):
    """One time series and its value."""

    metric_type: str
    labels: tuple[tuple[str, str], ...]
    """Of the metric, sorted by name."""
    value_type: ValueType
    value: float

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Identifies this series among those of the job."""
        return self.metric_type, self.labels


def gauges_of(
    snapshot: Snapshot,
    *,
    accelerator_type: str,
    cluster_name: str,
    own_events: Container[str],
    include_slice_efficiency: bool = False,
) -> list[Gauge]:
    """Return the gauges of what a snapshot has.

    Args:
        snapshot: What is known of the job.
        accelerator_type: The label of that name, of every metric but `performance`.
        cluster_name: The same; no label where it is empty.
        own_events: The types of custom events that have series of their own. All others are summed.
        include_slice_efficiency: True to include the efficiencies of slices, if they are known.

    Returns:
        The gauges, no series twice.
    """
    common = {"accelerator_type": accelerator_type}
    if cluster_name:
        common["cluster_name"] = cluster_name
    parts = _Parts(common, own_events, include_slice_efficiency)
    found: list[Gauge] = []
    if snapshot.cumulative is not None:
        found += parts.cumulative(snapshot.cumulative)
    if snapshot.deviation is not None and snapshot.deviation.from_baseline_seconds is not None:
        found.append(parts.double("step_time_deviation", snapshot.deviation.from_baseline_seconds))
    for window in snapshot.windows:
        found += parts.window(window)
    return list({gauge.key: gauge for gauge in found if math.isfinite(gauge.value)}.values())


def event_seconds(snapshot: Snapshot) -> dict[str, float]:
    """Return the types of custom events of a snapshot with what each weighs, to compare them by."""
    found: dict[str, float] = {}
    badput = [window.badput_percent for window in snapshot.windows]
    if snapshot.cumulative is not None:
        badput.append(snapshot.cumulative.badput_seconds)
    for kinds in badput:
        events = kinds.get(BadputType.CUSTOM_BADPUT_EVENTS)
        if isinstance(events, Mapping):
            found.update(events)
    return found


class _Parts(NamedTuple):
    """What all gauges of a snapshot share."""

    common: Mapping[str, str]
    own_events: Container[str]
    include_slice_efficiency: bool

    def cumulative(self, known: Cumulative) -> Iterator[Gauge]:
        so_far = MonitoringWindowType.CUMULATIVE.value
        yield self.double("goodput_time", known.goodput_seconds, goodput_source=GoodputType.TOTAL.name)
        yield from self.badput("badput_time", known.badput_seconds)
        yield self.integer("disruptions", known.disruptions, window_type=so_far)
        yield self.integer("max_productive_steps", known.max_productive_step)
        yield self.double("total_elapsed_time", known.total_elapsed_seconds, window_type=so_far)
        if known.ideal_step_seconds is not None:
            yield Gauge(f"{_PREFIX}performance", (), ValueType.DOUBLE, float(known.ideal_step_seconds))
        yield from self.slices(known.slice_efficiency, window_type=_CUMULATIVE, rolling_window_size="0")

    def window(self, known: RollingWindow) -> Iterator[Gauge]:
        size = str(known.window_seconds)
        yield self.double(
            "interval_goodput", known.goodput_percent, goodput_source=GoodputType.TOTAL.name, rolling_window_size=size
        )
        yield from self.badput("interval_badput", known.badput_percent, rolling_window_size=size)
        yield from self.slices(known.slice_efficiency, window_type=_INTERVAL, rolling_window_size=size)

    def badput(self, name: str, kinds: UnproductiveTimeDict, **labels: str) -> Iterator[Gauge]:
        for source, value in self._by_source(kinds).items():
            yield self.double(name, value, badput_source=source, **labels)

    def slices(self, known: SliceEfficiency | None, **labels: str) -> Iterator[Gauge]:
        if known is None or not self.include_slice_efficiency:
            return
        yield self.double("stepping_slice_efficiency", known.stepping, **labels)
        yield self.double("available_slice_efficiency", known.available, **labels)

    def double(self, name: str, value: float, **labels: str) -> Gauge:
        return self._gauge(name, ValueType.DOUBLE, float(value), labels)

    def integer(self, name: str, value: int, **labels: str) -> Gauge:
        return self._gauge(name, ValueType.INT, int(value), labels)

    def _gauge(self, name: str, value_type: ValueType, value: float, labels: Mapping[str, str]) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", tuple(sorted({**self.common, **labels}.items())), value_type, value)

    def _by_source(self, kinds: UnproductiveTimeDict) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind, value in kinds.items():
            if kind.name in ACTIVITY_EXCLUSION_LIST:
                continue
            if not isinstance(value, Mapping):
                found[kind.name] = float(value)
                continue
            for event, part in value.items():
                shown = event if event in self.own_events else OTHER_EVENTS
                source = f"{_EVENTS}.{shown}"[:_LONGEST_LABEL]
                found[source] = found.get(source, 0.0) + float(part)
        return found


MOST_EVENT_TYPES = 100
"""Types of custom events with series of their own, of one exporter; each costs one more for every rolling window."""

_RESOURCE_TYPE = "compute.googleapis.com/Workload"
_NOWHERE = "global"  # Cloud Monitoring takes no resource without a location.
_PERIOD_SECONDS = 5
_FRESH_SECONDS = 15.0  # The deadline of a request that failed, and a period.
_SEARCH_WAITS_SECONDS = (60.0,) * 10  # After the first searches for a cloud;
_LATER_SEARCH_SECONDS = 600.0  # after all later ones.
_SECOND = 1_000_000_000

_Key = tuple[str, tuple[tuple[str, str], ...]]


def cloud_monitoring_exporter(
    job_name: str,
    options: GCPOptions,
    *,
    include_slice_efficiency: bool = False,
    environ: Mapping[str, str] = os.environ,
    clock_ns: Callable[[], int] = time.time_ns,
    monotonic: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> CloudMonitoringExporter:
    """Return an exporter to Cloud Monitoring. It searches for a cloud at its first call.

    Args:
        job_name: The label `workload_id`.
        options: Project, location, replica, accelerator and cluster where the caller knows them, and whether to send.
            It is only read.
        include_slice_efficiency: True to include the efficiencies of slices, if they are known.
        environ: The environment variables.
        clock_ns: The wall clock, in nanoseconds since the POSIX epoch.
        monotonic: A clock in seconds that does not jump.
        wait: Waits a number of seconds.

    Raises:
        ConfigurationError: `ML_DIAGNOSTICS_BACKEND` has a value that it cannot have.
    """
    return CloudMonitoringExporter(
        job_name,
        options,
        include_slice_efficiency=include_slice_efficiency,
        environ=environ,
        clock_ns=clock_ns,
        monotonic=monotonic,
        wait=wait,
    )


class CloudMonitoringExporter:
    """Sends snapshots of one job; arguments as of `cloud_monitoring_exporter`.

    Attributes:
        counts: Points by what became of them: `written`, `held` (too soon after the last of their series),
            `malformed` (cannot be encoded), `refused_CODE`, `failed_CODE`, `skipped` (in the wait after a failure).
    """

    def __init__(
        self,
        job_name: str,
        options: GCPOptions,
        *,
        include_slice_efficiency: bool,
        environ: Mapping[str, str],
        clock_ns: Callable[[], int],
        monotonic: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        self.counts = Counters()
        self._job_name, self._options = job_name, options
        self._include_slice_efficiency = include_slice_efficiency
        self._environ, self._clock_ns, self._monotonic, self._wait = environ, clock_ns, monotonic, wait
        self._next_search = 0.0 if configured_backend(environ) is not Backend.LOCAL else math.inf
        self._search_waits = iter(_SEARCH_WAITS_SECONDS)
        self._destination: _Destination | None = None
        self._own_events: set[str] = set()
        self._pace = _Pace()
        self._unsent: dict[_Key, tuple[float, Gauge]] = {}
        self._backoff = Backoff(first_seconds=5.0, longest_seconds=60.0)
        self._access_backoff = Backoff(first_seconds=60.0, longest_seconds=600.0)
        self._try_at = self._server_at = 0.0  # By our own backoff, and by what a server asked for.

    def __call__(self, snapshot: Snapshot) -> None:
        """Send a snapshot, unless nothing can be sent now. Never raises for what the cloud answers."""
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
            timeout_seconds: The longest to wait for its time to come and for the server.
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

    # --- What to send -----------------------------------------------------------------------------------

    def _wanted(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot without what the options leave out; None where nothing is left."""
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
        self, destination: _Destination, gauges: Sequence[Gauge], ends: Mapping[_Key, int]
    ) -> Iterator[TimeSeries]:
        """Yield the series of the gauges that can be encoded."""
        for gauge in gauges:
            try:
                yield destination.series(gauge, ends[gauge.key])
            except (TypeError, ValueError, OverflowError) as error:  # Half a character, or a number beyond 64 bits.
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

    # --- Where to ---------------------------------------------------------------------------------------

    def _found_destination(self) -> _Destination | None:
        """Return the destination; None while there is none.

        It is searched for every minute, ten times, and then every ten minutes.

        A metadata server that does not answer all that the labels need counts as a failed search.
        """
        now = self._monotonic()
        if self._destination is not None or now < self._next_search:
            return self._destination
        try:
            self._destination = self._new_destination(find_cloud(self._options.project_id, environ=self._environ))
        except DiagnosticsError as error:
            self._next_search = now + next(self._search_waits, _LATER_SEARCH_SECONDS)
            warn_once(
                ("cloud monitoring", "no cloud"),
                "Goodput is not sent to Cloud Monitoring: %s. The job goes on, and what it records is kept: 'goodput "
                "report' shows it. The search is repeated every minute, and after ten minutes every ten.",
                str(error).rstrip("."),
            )
        return self._destination

    def _new_destination(self, cloud: CloudEnvironment) -> _Destination:
        """The labels are those of all points to come: a guess, for want of an answer, would stay."""
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
    """Where the points go, and as what."""

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
    """When each series may have its next point, and when that ends.

    Cloud Monitoring wants the points of a series in order and five seconds apart. How long ago the last one was is
    measured by a clock that does not jump; a wall clock that was set back is followed slowly, five seconds a point,
    until it has caught up. Only points that were accepted count: those that a wrong clock put into the future were not.
    """

    def __init__(self) -> None:
        self._asked: dict[_Key, float] = {}
        self._end_ns: dict[_Key, int] = {}

    def due(self, key: _Key) -> float:
        """When the next point may be sent, by the clock that does not jump."""
        return self._asked.get(key, -math.inf) + _PERIOD_SECONDS

    def end_ns(self, key: _Key, wall_ns: int) -> int:
        """The end of a point that is sent now."""
        last = self._end_ns.get(key)
        return wall_ns if last is None else max(wall_ns, last + _PERIOD_SECONDS * _SECOND)

    def asked(self, keys: Mapping[_Key, int], now: float) -> None:
        """Note that points are being sent."""
        self._asked.update(dict.fromkeys(keys, now))

    def accepted(self, ends: Mapping[_Key, int]) -> None:
        """Note the ends of points that the server took."""
        self._end_ns.update(ends)
