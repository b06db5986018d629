"""The gauges of jobs, without a format: name, unit, meaning, and the values with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ml_diagnostics_common.payload import printable

from ml_goodput_measurement._query.job_state import JobState
from ml_goodput_measurement.exporters.board import Shown
from ml_goodput_measurement.partition import Bucket

__all__ = ["GAUGES", "Gauge", "Value"]

Value = tuple[Mapping[str, str], float]
"""The labels of a value, and the value."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge.

    Attributes:
        prometheus: Its name for Prometheus.
        otlp: Its name for OTLP.
        unit: Its unit for OTLP, as UCUM writes it.
        help: A description.
        labels: The names of its labels.
        values: Returns its values; see `read`.
    """

    prometheus: str
    otlp: str
    unit: str
    help: str
    labels: tuple[str, ...]
    values: Callable[[Shown], Iterator[Value]]

    def read(self, shown: Shown) -> Iterator[Value]:
        """Yield its values. Labels are valid Unicode: one name that is not would fail the whole scrape."""
        for labels, value in self.values(shown):
            yield {name: printable(text) for name, text in labels.items()}, value


def _times(shown: Shown) -> Iterator[Value]:
    """Yield the time of each job in each bucket that took time in any of them."""
    buckets = [bucket for bucket in Bucket if any(state.buckets[bucket] for state in shown.states)]
    for state in shown.states:
        for bucket in buckets:
            yield {"job": state.job_name, "bucket": bucket.name.lower()}, state.buckets[bucket] / 1e9


def _of_each_job(value: Callable[[JobState], float]) -> Callable[[Shown], Iterator[Value]]:
    def values(shown: Shown) -> Iterator[Value]:
        for state in shown.states:
            yield {"job": state.job_name}, value(state)

    return values


def _info(shown: Shown) -> Iterator[Value]:
    for state in shown.states:
        labels = {name: state.labels.get(name, "") for name in ("team", "accelerator", "zone")}
        yield {"job": state.job_name, **labels, "attempt": str(state.attempts)}, 1.0


def _lost(shown: Shown) -> Iterator[Value]:
    yield from _of_each_log(shown.states, lambda state: float(state.lost_entries), sum)


def _lag(shown: Shown) -> Iterator[Value]:
    known = [state for state in shown.states if state.mirror_lag_seconds is not None]
    yield from _of_each_log(known, lambda state: state.mirror_lag_seconds or 0.0, max)


def _of_each_log(
    states: Sequence[JobState], value: Callable[[JobState], float], fold: Callable[[list[float]], float]
) -> Iterator[Value]:
    logs: dict[str, list[float]] = {}
    for state in states:
        logs.setdefault(state.log_id, []).append(value(state))
    for log, values in logs.items():
        yield {"log": log}, float(fold(values))


def _hidden(shown: Shown) -> Iterator[Value]:
    yield {}, float(shown.hidden)


_JOB = ("job",)
_LOG = ("log",)

GAUGES = (
    Gauge("ml_job_time_seconds", "ml.job.time", "s", "Wall time of the job by bucket.", ("job", "bucket"), _times),
    Gauge("ml_job_wall_time_seconds", "ml.job.wall_time", "s", "Wall time of the job.", _JOB,
          _of_each_job(lambda state: state.wall_ns / 1e9)),
    Gauge("ml_job_goodput_ratio", "ml.job.goodput", "1", "Productive share of the job's counted time.", _JOB,
          _of_each_job(lambda state: state.goodput_percent / 100)),
    Gauge("ml_job_step", "ml.job.step", "{step}", "The highest step that was kept.", _JOB,
          _of_each_job(lambda state: state.last_step)),
    Gauge("ml_job_attempts", "ml.job.attempts", "{attempt}", "Attempts of the job.", _JOB,
          _of_each_job(lambda state: state.attempts)),
    Gauge("ml_job_disruptions", "ml.job.disruptions", "{disruption}", "Restarts after an attempt with steps.", _JOB,
          _of_each_job(lambda state: state.disruptions)),
    Gauge("ml_job_last_event_timestamp_seconds", "ml.job.last_event_timestamp", "s",
          "When the job last recorded something, in seconds since 1970.", _JOB,
          _of_each_job(lambda state: state.last_event_ns / 1e9)),
    Gauge("ml_job_info", "ml.job.info", "1", "The labels of the job.",
          ("job", "team", "accelerator", "zone", "attempt"), _info),
    Gauge("ml_job_hidden", "ml.job.hidden", "{job}", "Jobs that are left out, since there are too many.", (), _hidden),
    Gauge("ml_diagnostics_mirror_lag_seconds", "ml.diagnostics.mirror_lag", "s",
          "How far the mirror of the log is behind.", _LOG, _lag),
    Gauge("ml_diagnostics_entries_lost", "ml.diagnostics.entries_lost", "{entry}",
          "Entries of the log that recorders report as not written.", _LOG, _lost),
)  # fmt: skip
"""All gauges. None is a counter: a step turns from productive to wasted, and wall time may shrink."""
