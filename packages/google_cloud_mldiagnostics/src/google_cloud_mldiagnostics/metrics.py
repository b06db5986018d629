"""Record metrics: one line of text and one write for each value. No call waits for a network or a device.

`record` is called in every step, so the usual call (a float, a step, no labels) formats one string and no more.
"""

from __future__ import annotations

import datetime
import enum
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ml_diagnostics_common.clock import now_ns
from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.guard import LOSSES, report_loss, warn_once
from ml_diagnostics_common.payload import encode_payload, encode_text
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.redaction import REDACTED, is_secret_key, redact_text

from google_cloud_mldiagnostics._recording import device_values
from google_cloud_mldiagnostics._recording.run_log import FOLD_AT, Average, Averages, namespace_fields
from google_cloud_mldiagnostics._recording.values import LARGEST_STEP, exact_step, host_numbers, shown_type
from google_cloud_mldiagnostics._run_state import active_run
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
from google_cloud_mldiagnostics.exceptions import RecordingError
from google_cloud_mldiagnostics.metric_types import METRIC_UNITS, MetricType

__all__ = ["Moment", "record", "record_metrics", "to_tensorboard"]

Moment: TypeAlias = "datetime.datetime | float | str"
"""When a value was measured: a datetime (naive: local time), seconds since 1970, or RFC 3339."""

_MOST_NAMES = 10_000
_LONGEST_NAME = 500
_LONGEST_SHOWN = 100
_OUR_PREFIX = "mlrun_"
_RESERVED = frozenset({"values", "step_index", "unit", "not_finite", "hostname", "process_index"})
_LABEL_PREFIX = "label_"
_EXACT_AS_FLOAT = 2**53
_SMALLEST_STEP = -LARGEST_STEP
_MISSING: Any = object()
_BESIDE_A_MAPPING = "a value beside a mapping is ignored (the mapping's values are recorded; pass a step as step=)"
_LATEST_NS = 253_402_300_800 * 10**9  # The year 10000.


def record(
    metric_name: MetricType | str | Mapping[MetricType | str, Any],
    value: Any = _MISSING,
    step: int | None = None,
    labels: Mapping[str, str] | None = None,
    record_on_all_hosts: bool = False,
    *,
    timestamp: Moment | None = None,
) -> None:
    """Record a value of a metric of the current run. Never raises, and never waits for a device or a network.

    Args:
        metric_name: A predefined metric, or any other name that does not start with `mlrun_`; or a mapping of names to
            values, instead of `value`.
        value: A number of Python, numpy, JAX or PyTorch; or a list or an array of one dimension with a number per chip.
            One that is still computed on a device is recorded when it is ready. With a mapping: the step, unless
            `step` is given or this is a float.
        step: The step of the value; anything that `int` accepts without changing it.
        labels: Labels of the value, stored as text.
        record_on_all_hosts: True to record it on every process, not only on the run's first; then the entry has the
            host's name and the index of the process.
        timestamp: When the value was measured; None is now.
    """
    try:
        # With cold caches each lookup costs, so only what a float needs is read. Known metrics are those that this
        # process records.
        known = active_run._known_metrics
        try:
            metric = None if known is None else known[metric_name]
        except Exception:  # A name that is new, or cannot be hashed.
            metric = None
        kind = type(value)
        if kind is int and metric is not None and -_EXACT_AS_FLOAT <= value <= _EXACT_AS_FLOAT:
            value, kind = float(value), float
        if (
            kind is float
            and metric is not None
            and labels is None
            and timestamp is None
            and not record_on_all_hosts
            and (step is None or (type(step) is int and _SMALLEST_STEP < step < LARGEST_STEP))
            and value - value == 0.0  # Finite.
        ):
            if step is None:
                text = f'{{"values":[{value!r}]{metric.tail}'
            else:
                text = f'{{"values":[{value!r}],"step_index":{step}{metric.tail}'
            metric.write_text(str(now_ns()), text)
            pending = metric.pending  # The `add` of its average, inlined.
            pending.append(value)
            if len(pending) >= FOLD_AT:
                metric.average.fold()
        else:
            _record_slowly(metric_name, value, step, labels, record_on_all_hosts, timestamp)
    except Exception as error:
        _give_up(error, metric_name)


def record_metrics(
    metrics_data: Iterable[Mapping[str, Any]],
    record_on_all_hosts: bool = False,
    step: int | None = None,
    *,
    timestamp: Moment | None = None,
) -> None:
    """Record several values. Never raises, never waits, and does not change its arguments.

    Args:
        metrics_data: A dict for each value with the keys metric_name and value, and optionally step, labels and
            timestamp: see `record`.
        record_on_all_hosts: See `record`.
        step: The step of values without one of their own.
        timestamp: The timestamp of values without one of their own.
    """
    try:
        for item in metrics_data:
            if not isinstance(item, Mapping) or "metric_name" not in item or "value" not in item:
                _lose("an item of record_metrics without metric_name or value", shown_type(item))
                continue
            own_step, own_timestamp = item.get("step"), item.get("timestamp")
            record(
                item["metric_name"],
                item["value"],
                step if own_step is None else own_step,
                item.get("labels"),
                record_on_all_hosts,
                timestamp=timestamp if own_timestamp is None else own_timestamp,
            )
    except Exception as error:
        report_loss("metrics.record_metrics", error, "record its values")


def to_tensorboard(folder: str | os.PathLike[str], *, interval_seconds: float = 10.0) -> None:
    """Write what is recorded to TensorBoard too: the values of the run, or of the next one if none is active.

        metrics.to_tensorboard("runs/digits")

    A thread reads them from the journal; `record` does not change. TensorBoard shows them as `metrics`, beside other
    event files in the folder, such as a goodput monitor's. After a restart the same folder continues: steps that are
    repeated replace the earlier ones. Values without a step are numbered, a value for each chip becomes the mean, and
    labels are appended to the name: `loss/split=train`. System metrics are not written.

    Args:
        folder: The job's folder: a path, or `gs://bucket/folder`. Each of several jobs needs its own.
        interval_seconds: The time between two writes; the last one is at the end of the run.

    Raises:
        ConfigurationError: The folder is neither on this machine nor in Cloud Storage, or the interval is not valid.
        MissingExtraError: The folder is in Cloud Storage, and google-cloud-storage is not installed.
    """
    from google_cloud_mldiagnostics import _tensorboard

    target = _tensorboard.checked_target(folder, interval_seconds)
    try:
        _tensorboard.export_to(target, active_run.active_run())
    except Exception as error:
        report_loss("metrics.to_tensorboard", error, "write to TensorBoard")


# --- Prepared metrics ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Metric:
    """One metric of one run, prepared once, since with cold caches every lookup for a value costs.

    Attributes:
        tail: The text after the value and the step, in the line of an entry without labels: unit and namespace.
        unit: The unit, as JSON.
        fields: The text after the payload.
        average: The average of the recorded values.
        pending: The queue of the average.
        write_text: The function of the log.
    """

    tail: str
    unit: str
    fields: str
    average: Average
    pending: list[float]
    write_text: Callable[..., None]


class _RecordedRun:
    """The run of the last recording, with its prepared metrics."""

    def __init__(self, run: ActiveRun) -> None:
        self.run = run
        self.write_text: Callable[..., None] = run.log.write_text
        self.metrics: dict[str, _Metric] = {}
        # A forked child has new averages: a copy may stay in the middle of the parent's change.
        self._averages = run.log.averages if run.pid == os.getpid() else Averages()

    def metric(self, name: str) -> _Metric:
        """Return the prepared metric of a name.

        Raises:
            RecordingError: The name is not valid.
        """
        if not name or name.startswith(_OUR_PREFIX):
            raise RecordingError(f"expected a metric name that does not start with {_OUR_PREFIX} and is not empty")
        if len(name) > _LONGEST_NAME:
            raise RecordingError(f"expected a metric name of at most {_LONGEST_NAME} characters, got a longer one")
        known = self.metrics.get(name)
        if known is None:
            if len(self.metrics) >= _MOST_NAMES:
                self.metrics.clear()
                self.run.known_metrics.clear()
            shown = redact_text(name)
            unit, fields = encode_text(METRIC_UNITS.get(name, "1")), namespace_fields(shown)
            average, tail = self._averages.of(shown), f',"unit":{unit}}}{fields}'
            known = _Metric(tail, unit, fields, average, average.pending, self.write_text)
            self.metrics[name] = known
            if not self.run.process_index:
                self.run.known_metrics[name] = known
                member: Any = MetricType._value2member_map_.get(name)
                if member is not None:
                    self.run.known_metrics[member] = known
        return known


_recorded_run_of_this_process: _RecordedRun | None = None


def _recorded(run: ActiveRun) -> _RecordedRun:
    global _recorded_run_of_this_process
    recorded = _recorded_run_of_this_process
    if recorded is None or recorded.run is not run:
        recorded = _recorded_run_of_this_process = _RecordedRun(run)
    return recorded


def _start_clean_in_child() -> None:
    global _recorded_run_of_this_process
    _recorded_run_of_this_process = None
    run = active_run.active_run()
    if run is not None:
        run.known_metrics = {}
        active_run.set_active_run(run)


at_fork(_start_clean_in_child)


# --- All other values -------------------------------------------------------------------------------------


def _record_slowly(
    name: Any,
    value: Any,
    step: Any,
    labels: Mapping[str, str] | None,
    on_all_hosts: bool,
    timestamp: Moment | None,
) -> None:
    run = active_run.active_run()
    if run is None:
        _lose_without_run()
    elif run.process_index and not on_all_hosts:
        return
    elif isinstance(name, Mapping) and name:
        if step is None and value is not _MISSING and not isinstance(value, float):
            step = value  # As in the loggers of other libraries.
        elif value is not _MISSING and value is not None:
            _lose(_BESIDE_A_MAPPING, name, _recorded(run))
        for key, item in name.items():
            record(key, item, step, labels, on_all_hosts, timestamp=timestamp)
    else:
        _record_any(_recorded(run), name, value, step, labels, on_all_hosts, timestamp)


def _record_any(
    recorded: _RecordedRun,
    name: Any,
    value: Any,
    step: Any,
    labels: Mapping[str, str] | None,
    on_all_hosts: bool,
    timestamp: Moment | None,
) -> None:
    if value is _MISSING:
        got = "an empty mapping" if isinstance(name, Mapping) else "none"
        raise RecordingError(f"expected at least one value, got {got}")
    shown = _name(name)
    metric = recorded.metric(shown)
    host = {"hostname": recorded.run.host, "process_index": str(recorded.run.process_index)} if on_all_hosts else {}
    details = _details(host, labels, shown)
    given = _timestamp(timestamp, shown)
    fetch_value, fetch_step = device_values.fetch_of(value), device_values.fetch_of(step)
    if fetch_value is None and fetch_step is None:
        _write(recorded, metric, shown, value, step, details, given)
        return
    called = given or str(now_ns())

    def deliver() -> None:
        try:
            fetched = value if fetch_value is None else fetch_value()
            at = step if fetch_step is None else fetch_step()
            _write(recorded, metric, shown, fetched, at, details, called)
        except Exception as error:
            _give_up(error, name, recorded)

    if fetch_value is not None:
        value = None  # The array itself: its device may have the memory again as soon as it is copied.
    device_values.later(deliver)


def _write(
    recorded: _RecordedRun, metric: _Metric, name: str, value: Any, step: Any, details: str, timestamp: str | None
) -> None:
    numbers = host_numbers(value)
    at = f',"step_index":{step}' if (step := _step_or_none(step, name, recorded)) is not None else ""
    marked = "" if numbers.is_finite else ',"not_finite":true'
    payload = f'{{"values":{numbers.json}{at},"unit":{metric.unit}{marked}{details}}}'
    recorded.write_text(str(now_ns()), payload + metric.fields, timestamp)
    metric.average.add(numbers.mean)


def _name(name: Any) -> str:
    """Return a metric's name; accepts members of the user's own enums."""
    if isinstance(name, enum.Enum):
        name = name.value
    if not isinstance(name, str):
        raise RecordingError(f"metric name must be a str, got {shown_type(name)}")
    return str.__str__(name)


def _step_or_none(step: Any, name: str, recorded: _RecordedRun) -> int | None:
    """Return the step as an integer; None, counted, if it is not one: the value is worth more than its step."""
    if step is None:
        return None
    try:
        return exact_step(step)
    except RecordingError as error:
        _lose(f"{error} (the value is recorded without it)", name, recorded)
        return None


def _details(host: Mapping[str, str], labels: Any, metric: str) -> str:
    """Return host and labels as JSON text to append to the payload, without secrets.

    A label with the name of one of our fields is renamed. `hostname` and `process_index` are reserved even if the entry
    lacks them: readers would attribute the value to another process.
    """
    details: dict[str, Any] = dict(host)
    if labels is not None and not isinstance(labels, Mapping):
        _lose(f"expected labels as a mapping, got {shown_type(labels)} (the value is recorded without them)", metric)
        labels = None
    for key, label in (labels or {}).items():
        name = redact_text(str(key))
        while name in _RESERVED or name in details:
            name = _LABEL_PREFIX + name
        details[name] = REDACTED if _is_secret(name[:_LONGEST_NAME]) else redact_text(_text(label))
    return f",{encode_payload(details)[1:-1]}" if details else ""


def _text(label: Any) -> str:
    return label if isinstance(label, str) else str(label)


@functools.lru_cache(maxsize=1024)
def _is_secret(label: str) -> bool:
    return is_secret_key(label)


def _timestamp(moment: Moment | None, metric: str) -> str | None:
    """Return a moment in ns since 1970 as digits; None, counted, if it is invalid."""
    if moment is None:
        return None
    try:
        if isinstance(moment, str):
            timestamp_ns = parse_timestamp(moment)
        else:
            seconds = moment.timestamp() if isinstance(moment, datetime.datetime) else float(moment)
            timestamp_ns = round(seconds * 1_000_000) * 1_000  # A float has no more than microseconds in these years.
        if 0 < timestamp_ns < _LATEST_NS:
            return str(timestamp_ns)
    except Exception:
        pass
    given = "an invalid one" if isinstance(moment, (str, int, float, datetime.datetime)) else shown_type(moment)
    _lose(
        f"expected a timestamp in seconds, RFC 3339 or datetime, got {given} (the value is recorded as of now)", metric
    )
    return None


# --- Losses -----------------------------------------------------------------------------------------------


def _give_up(error: Exception, what: Any, recorded: _RecordedRun | None = None) -> None:
    """Count a value that was not recorded because it is invalid, or because of a bug in this library."""
    try:
        if not isinstance(error, RecordingError):
            raise error
        _lose(str(error), what, recorded)
    except Exception as mistake:
        report_loss("metrics.record", mistake, "record its value")


def _lose(reason: str, what: Any, recorded: _RecordedRun | None = None) -> None:
    """Count a lost value, and warn once for each reason."""
    recorded = recorded or _recorded_run_of_this_process
    if recorded is not None:
        recorded.run.log.lose(reason)
    name = what.value if isinstance(what, MetricType) else what if isinstance(what, str) else shown_type(what)
    warn_once(
        ("metrics", reason),
        "A value of %s could not be recorded as it was given: %s. The job continues; further losses of this kind are "
        "counted, not logged.",
        name[:_LONGEST_SHOWN],
        reason,
    )


def _lose_without_run() -> None:
    LOSSES.add("metrics: no run")
    warn_once(
        ("metrics", "no run"),
        "metrics.record was called and there is no run: call machinelearning_run first. The job continues; such values "
        "are counted, not kept.",
    )
