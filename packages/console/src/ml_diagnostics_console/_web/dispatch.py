"""Entries of all runs to the run and the column that each belongs to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from google_cloud_mldiagnostics.reading import PROCESS, SESSION, natural_number
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.redaction import redact_text

from ml_diagnostics_console._web.run_data import RunData

__all__ = ["Dispatch"]

_NOT_METRICS: Final = "mlrun_"
_ACTIVE: Final = "ACTIVE"
_NAMESPACE: Final = "namespace"
_NODE: Final = "node_id"
_MOST_CONTEXTS: Final = 50_000
_LARGEST_STEP: Final = 2**63
_NAN: Final = float("nan")
_INFINITY: Final = float("inf")

_without_secrets: Final = functools.lru_cache(maxsize=10_000)(redact_text)
"""Names and units return often: an entry of each value that is not finite has them."""

_Appends = tuple[Callable[[float], None], Callable[[float], None], Callable[[float], None]]


class _Writer(NamedTuple):
    """One process that writes entries of one run.

    Attributes:
        run: The run.
        host: The process's host.
        pid: Its id there.
        process: Its index as text; the host if that is not known.
        plain: The columns of metrics that it recorded with one value and nothing else, by metric.
    """

    run: RunData
    host: str
    pid: int
    process: str
    plain: dict[str, _Appends]


class Dispatch:
    """Adds entries to their runs.

    Args:
        run_of: Returns the data of a run by its id, also of one that the control plane does not have yet.

    Attributes:
        touched: The runs that got entries since this was cleared.
        changed: The runs among these that got other entries than values and signs of life.
        count: The number of entries.
    """

    def __init__(self, run_of: Callable[[str], RunData]) -> None:
        self.touched: set[str] = set()
        self.changed: set[str] = set()
        self.count = 0
        self._run_of = run_of
        self._writers: dict[tuple[str, str, str, str], _Writer] = {}
        # By the identity of a context, which all entries of a segment share.
        self._by_context: dict[int, tuple[EntryContext, _Writer]] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries, in any order; with a million values of metrics each call counts."""
        context: EntryContext | None = None
        writer: _Writer | None = None
        plain: dict[str, _Appends] = {}
        last_ns, step_ns, last_step = 0, 0, -1
        count = 0
        for entry in entries:
            count += 1
            if entry.context is not context:
                if writer is not None and last_ns:
                    _note_values(writer, last_ns, step_ns, last_step)
                context = entry.context
                writer = self._writer_of(context)
                plain, last_ns, step_ns, last_step = writer.plain, 0, 0, -1
            own, payload = entry.own_resource_labels, entry.payload
            known = plain.get(own.get(_NAMESPACE, "")) if own is not None else None
            if known is not None and "values" in payload and "unit" in payload:
                values, size, step = payload["values"], len(payload), payload.get("step_index", _NAN)
                if (
                    (
                        size == 2
                        or (size == 3 and type(step) is int and 0 <= step < _LARGEST_STEP)
                        or (size == 4 and step is _NAN and _is_own(payload, writer))
                    )
                    and type(values) is list
                    and len(values) == 1
                    and type(values[0]) is float
                ):
                    timestamp_ns = entry.timestamp_ns
                    known[0](step)
                    known[1](timestamp_ns / 1e9)
                    known[2](values[0])
                    if timestamp_ns >= last_ns:
                        last_ns = timestamp_ns
                        if step is not _NAN:
                            step_ns, last_step = timestamp_ns, int(step)
                    continue
            self._add_other(entry, self._writer_of(entry.context))
        if writer is not None and last_ns:
            _note_values(writer, last_ns, step_ns, last_step)
        self.count += count

    def _writer_of(self, context: EntryContext) -> _Writer:
        known = self._by_context.get(id(context))
        if known is not None and known[0] is context:
            self.touched.add(known[1].run.id)
            return known[1]
        labels = context.labels
        resource_labels = context.resource.get("labels")
        node = str(resource_labels.get(_NODE, "")) if isinstance(resource_labels, Mapping) else ""
        host, process = str(labels.get("host") or ""), str(labels.get("process_index") or "")
        key = (node, host, process, str(labels.get("pid") or ""))
        writer = self._writers.get(key)
        if writer is None:
            writer = _Writer(self._run_of(node), host, natural_number(labels.get("pid")) or 0, process or host, {})
            self._writers[key] = writer
        if len(self._by_context) >= _MOST_CONTEXTS:  # Entries of Cloud Logging may have a context each.
            self._by_context.clear()
        self._by_context[id(context)] = context, writer
        self.touched.add(writer.run.id)
        return writer

    def _add_other(self, entry: LogEntry, writer: _Writer) -> None:
        """Add an entry that is not a plain value of a known metric."""
        payload, own = entry.payload, entry.own_resource_labels
        run = writer.run
        if own is not None and own.get(_NODE, run.id) != run.id:
            run = self._run_of(own[_NODE])
            self.touched.add(run.id)
        namespace = entry.resource_label(_NAMESPACE)
        if namespace in (PROCESS, SESSION) or "values" not in payload:
            known = len(run.history.processes)
            run.history.add((entry,))
            is_beat = namespace == PROCESS and payload.get("phase") == _ACTIVE
            if not is_beat or known != len(run.history.processes):
                self.changed.add(run.id)
            return
        if not namespace or namespace.startswith(_NOT_METRICS):
            return
        value = _mean(payload["values"])
        if value is None:
            return
        step = _step(payload.get("step_index"))
        host = str(payload.get("hostname") or writer.host)
        process = str(payload.get("process_index") or writer.process)
        unit = str(payload.get("unit") or "1")
        column = run.columns.column(_without_secrets(namespace), process, host, _without_secrets(unit))
        column.append(_NAN if step is None else step, entry.timestamp_ns / 1e9, value)
        own_step = step if "step_index" in payload and step is not None and step >= 0 else None
        run.history.add_values(writer.host, writer.pid, entry.timestamp_ns, own_step)
        if process == writer.process and run is writer.run:
            writer.plain[namespace] = (column.steps.append, column.times.append, column.values.append)


def _is_own(payload: Mapping[str, Any], writer: _Writer | None) -> bool:
    """Return True if a value of a host is of the process that recorded it."""
    return (
        writer is not None and payload.get("process_index") == writer.process and payload.get("hostname") == writer.host
    )


def _mean(values: Any) -> float | None:
    """Return the mean of the finite values of an entry, the last value if none is finite; None if it has none."""
    try:
        numbers = list(map(float, values)) if isinstance(values, list) else [float(values)]
    except (TypeError, ValueError, OverflowError):
        return None
    if len(numbers) < 2:
        return numbers[0] if numbers else None
    finite = [number for number in numbers if -_INFINITY < number < _INFINITY]
    # Each divided before they are added, so that no sum is too large for a float.
    return sum(number / len(finite) for number in finite) if finite else numbers[-1]


def _step(step: Any) -> int | None:
    """Return the step of an entry: an integer, a float from Cloud Logging, or a text in entries of other programs."""
    try:
        number = float(step)
        found = step if isinstance(step, int) else int(number) if number.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found is not None and abs(found) < _LARGEST_STEP else None


def _note_values(writer: _Writer, last_ns: int, step_ns: int, last_step: int) -> None:
    """Note when a process recorded its last value, and its last one with a step: in a hang it goes on without steps."""
    history = writer.run.history
    history.add_values(writer.host, writer.pid, last_ns)
    if last_step >= 0:
        history.add_values(writer.host, writer.pid, step_ns, last_step)
