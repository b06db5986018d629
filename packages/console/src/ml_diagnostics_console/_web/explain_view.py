"""The recorded entries behind a number or a proof of the page: their ids, and their payloads without secrets.

`of` is one of these:

proof:N            the N-th proof of the doctor's verdict
bucket:NAME        the entries around the longest pieces of a bucket of wall time
disruption:N       the last entries before a restart, and those up to the first step after it
attempt:N          what the processes of an attempt recorded of themselves
process:HOST/PID   the same of one process, and what its companion recorded of its end
metric:NAME        the last values of a metric, or with metric:NAME@STEP those of a step
stacks:SECONDS     the stacks of a moment, in seconds since 1970
entry:ID           one entry
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from cloud_tpu_diagnostics.entries import DUMP, JOB_ENDED, LEFT_BLOCK, SNAPSHOT
from google_cloud_mldiagnostics.reading import LOG_ID, PROCESS, natural_number, number
from ml_diagnostics_common.entry import COMPANION_LOG_ID, LogEntry, split_insert_id
from ml_diagnostics_common.journal import list_segments, log_directory
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_common.redaction import redact
from ml_goodput_measurement.reading import BUCKET_KEYS

from ml_diagnostics_console._web.answers import Answer, BadQueryError, NotThereError, json_answer
from ml_diagnostics_console._web.ledger_view import pieces_between
from ml_diagnostics_console._web.queries import Query, quoted
from ml_diagnostics_console._web.run_companions import companions_of
from ml_diagnostics_console._web.run_goodput import goodput_of

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console._web.store import Store

    _Find = Callable[[RunData, str], Iterator[LogEntry]]

__all__ = ["explain"]

_SECOND_NS: Final = 1_000_000_000
_MOST: Final = 100
_MOST_PIECES: Final = 20
_MOST_STEPS: Final = 20_000
_BEFORE: Final = 5
_NEAR_NS: Final = 2_000_000
"""Entries of an event are recorded within this time of it."""
_TOGETHER_NS: Final = 30 * _SECOND_NS
_NEWEST_WRITERS: Final = 2
_END_BYTES: Final = 2**18
_PAYLOAD_BYTES: Final = 20_000
_LONGEST_PID: Final = 10
_PROOF: Final = "proof"
_FORMS: Final = "proof:1, bucket:NAME, disruption:1, attempt:1, process:HOST/PID, metric:NAME, stacks:TIME or entry:ID"


def explain(run: RunData, query: Query, store: Store) -> Answer:
    """Answer the entries behind what `of` names."""
    of = query.text("of")
    kind, colon, what = of.partition(":")
    if not colon or kind not in (_PROOF, *_KINDS) or not what:
        raise BadQueryError(f"of must be one of {_FORMS}, got {quoted(of)}")
    with store.lock:
        find = _proof(run, what, store) if kind == _PROOF else _KINDS[kind](run, what)
    entries = list(islice(find, 100 * _MOST))
    shown = [_row_of(entry) for entry in entries[:_MOST]]
    return json_answer({"of": of, "entries": shown, "total": len(entries)})


def _row_of(entry: LogEntry) -> dict[str, Any]:
    return {
        "insert_id": entry.insert_id,
        "time": entry.timestamp_ns / _SECOND_NS,
        "log": entry.context.log_id,
        "host": entry.context.labels.get("host", ""),
        "payload": redact(entry.payload, max_bytes=_PAYLOAD_BYTES),
    }


# --- The logs of a run -----------------------------------------------------------------------------------


def _of_run(run: RunData) -> Iterator[LogEntry]:
    reader = JournalReader(LOG_ID, root=run.journal.root, resource_labels={"node_id": {run.id}})
    for entry in chain.from_iterable(reader.read_new()):
        if entry.resource_label("node_id") == run.id:
            yield entry


def _of_companions(run: RunData, writers: Iterable[str]) -> Iterator[LogEntry]:
    reader = JournalReader(COMPANION_LOG_ID, root=run.journal.root, writers=frozenset(writers))
    return chain.from_iterable(reader.read_new())


def _of_goodput(run: RunData, log_id: str, writers: Iterable[str]) -> Iterator[LogEntry]:
    if not log_id:
        return iter(())
    reader = JournalReader(log_id, root=run.journal.root, writers=frozenset(writers))
    return chain.from_iterable(reader.read_new())


def _goodput_log(run: RunData) -> tuple[str, frozenset[str]]:
    goodput = goodput_of(run)
    goodput.refresh(run)
    return goodput.log_id, goodput.writers


# --- What can be explained -------------------------------------------------------------------------------


def _proof(run: RunData, what: str, store: Store) -> Iterator[LogEntry]:
    known = store.doctor.known(run)
    if known is None or known.judged.answer.get("sentence") is None:
        raise NotThereError("The verdict on this run is not known yet: ask again in a moment.")
    evidence = known.judged.evidence
    index = _natural(what, "proof")
    if not 1 <= index <= len(evidence):
        raise NotThereError(f"The verdict has {len(evidence)} proofs, and none with the number {index}.")
    return _with_ids(run, {evidence[index - 1]})


def _entry(run: RunData, what: str) -> Iterator[LogEntry]:
    return _with_ids(run, {what})


def _with_ids(run: RunData, ids: set[str]) -> Iterator[LogEntry]:
    """Return the entries with some ids, of any log of the run; none for an id of something else."""
    writers = {parts[0] for each in ids if (parts := split_insert_id(each)) is not None}
    companions = companions_of(run).writers & writers
    log_id, of_goodput = _goodput_log(run)
    logs = [_of_companions(run, companions)] if companions else []
    if of_goodput & writers:
        logs.append(_of_goodput(run, log_id, of_goodput & writers))
    if not logs and writers:
        logs.append(_of_run(run))
    return (entry for entry in chain.from_iterable(logs) if entry.insert_id in ids)


def _bucket(run: RunData, what: str) -> Iterator[LogEntry]:
    names = list(BUCKET_KEYS.values())
    if what not in names:
        raise BadQueryError(f"there is no bucket {quoted(what)}; there are {', '.join(names)}")
    goodput = goodput_of(run)
    report, job = goodput.report(run), goodput.ledger
    if report is None or job is None:
        return iter(())
    start, end = report.start_ns / _SECOND_NS, report.end_ns / _SECOND_NS
    while job.steps_between(round(start * _SECOND_NS), report.end_ns) > _MOST_STEPS:
        start = (start + end) / 2  # Of a long run the last part: its pieces are examples.
    pieces = pieces_between(run, job, report, start, end)
    lengths = [
        (float(end - start), round(start * _SECOND_NS), round(end * _SECOND_NS))
        for start, end, bucket in zip(pieces.starts, pieces.ends, pieces.buckets, strict=True)
        if names[bucket] == what
    ]
    borders = [border for _, *both in heapq.nlargest(_MOST_PIECES, lengths) for border in both]
    log_id, writers = _goodput_log(run)
    return (
        entry
        for entry in _of_goodput(run, log_id, writers)
        if any(abs(entry.timestamp_ns - border) <= _NEAR_NS for border in borders)
    )


def _disruption(run: RunData, what: str) -> Iterator[LogEntry]:
    report = goodput_of(run).report(run)
    disruptions = () if report is None else report.disruptions
    index = _natural(what, "disruption")
    found = next((each for each in disruptions if each.number == index), None)
    if found is None:
        raise NotThereError(f"This run has {len(disruptions)} disruptions, and none with the number {index}.")
    log_id, writers = _goodput_log(run)
    return _around(_of_goodput(run, log_id, writers), found.last_event_ns + _NEAR_NS, found.resumed_ns - _NEAR_NS)


def _around(entries: Iterable[LogEntry], end_ns: int, start_ns: int) -> Iterator[LogEntry]:
    """Yield the last entries up to a moment, and those from another one up to the first step after it."""
    last: deque[LogEntry] = deque(maxlen=_BEFORE)
    steps = 0
    for entry in entries:
        if entry.timestamp_ns <= end_ns:
            last.append(entry)
            continue
        yield from last
        last.clear()
        if entry.timestamp_ns >= start_ns:
            yield entry
            steps += "step_start_time" in entry.payload
            if steps > 1:
                return
    yield from last


def _attempt(run: RunData, what: str) -> Iterator[LogEntry]:
    wanted = _natural(what, "attempt")
    if all(attempt.number != wanted for attempt in run.attempts):
        raise NotThereError(f"This run has {len(run.attempts)} attempts, and none with the number {wanted}.")
    return (
        entry
        for entry in _of_run(run)
        if entry.resource_label("namespace") == PROCESS and natural_number(entry.payload.get("attempt")) == wanted
    )


def _process(run: RunData, what: str) -> Iterator[LogEntry]:
    host, _, pid = what.rpartition("/")
    if not host or not (pid.isascii() and pid.isdecimal()) or len(pid) > _LONGEST_PID:
        raise BadQueryError(f"process must be HOST/PID, got {quoted(what)}")
    ends = (
        entry
        for entry in _of_companions(run, companions_of(run).writers)
        if entry.payload.get("kind") in (JOB_ENDED, LEFT_BLOCK)
        and (entry.context.labels.get("host"), entry.context.labels.get("pid")) == (host, pid)
    )
    own = (
        entry
        for entry in _of_run(run)
        if entry.resource_label("namespace") == PROCESS
        and entry.payload.get("hostname") == host
        and natural_number(entry.payload.get("pid")) == int(pid)
    )
    return chain(own, ends)


def _metric(run: RunData, what: str) -> Iterator[LogEntry]:
    name, at, digits = what.rpartition("@")
    step = int(digits) if at and digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
    if step is None:
        name = what
    if name not in run.columns:
        raise NotThereError(f"This run has no metric {quoted(name)}.")
    if step is None:
        return _last_values(run, name)
    return (
        entry
        for entry in _of_run(run)
        if entry.resource_label("namespace") == name and natural_number(entry.payload.get("step_index")) == step
    )


def _last_values(run: RunData, name: str) -> Iterator[LogEntry]:
    """Return the last values of a metric of its first process; they are read when the first one is wanted."""
    column = run.columns.first(name)
    host = column.host if column is not None else ""
    writers = run.journal.metrics.refresh().values()
    own = [writer for writer in writers if writer.run == run.id and writer.host == host]
    newest = {writer.name for writer in heapq.nlargest(_NEWEST_WRITERS, own, key=lambda writer: writer.started_ns)}
    return _last_of(run, name, host, newest)


def _last_of(run: RunData, name: str, host: str, newest: set[str]) -> Iterator[LogEntry]:
    """Yield the last values of a metric of a host. Without the store's lock, as all that reads the journal here."""
    last: deque[LogEntry] = deque(maxlen=_BEFORE)
    readers: tuple[Callable[[], Iterator[LogEntry]], ...] = (
        lambda: _ends_of_writers(run, newest),
        lambda: _of_run(run),
    )
    for read in readers:
        last.clear()
        for entry in read():
            if entry.resource_label("namespace") == name and entry.context.labels.get("host", "") == host:
                last.append(entry)
        if len(last) == _BEFORE:  # Else the whole log is read.
            break
    yield from last


def _ends_of_writers(run: RunData, newest: set[str]) -> Iterator[LogEntry]:
    """Return the last entries of some writers: the log of a long run takes seconds to read."""
    root = run.journal.root
    offsets: dict[str, dict[str, int]] = {}
    for segment in list_segments(log_directory(root, LOG_ID), newest):
        offsets.setdefault(segment.writer, {})[str(segment.number)] = max(0, segment.size - _END_BYTES)
    reader = JournalReader(LOG_ID, root=root, writers=newest, position={"writers": offsets})
    return chain.from_iterable(reader.read_new())


def _stacks(run: RunData, what: str) -> Iterator[LogEntry]:
    seconds = number(what)
    if seconds is None or not 0 <= seconds < 1e11:
        raise BadQueryError(f"stacks must be a time in seconds since 1970, got {quoted(what)}")
    end_ns = round(seconds * _SECOND_NS) + _NEAR_NS
    return (
        entry
        for entry in _of_companions(run, companions_of(run).writers)
        if entry.payload.get("kind") in (SNAPSHOT, DUMP) and end_ns - _TOGETHER_NS <= entry.timestamp_ns <= end_ns
    )


def _natural(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise BadQueryError(f"{name} must be a number from 1, got {quoted(text)}")
    return int(text)


_KINDS: Final[Mapping[str, _Find]] = {
    "bucket": _bucket,
    "disruption": _disruption,
    "attempt": _attempt,
    "process": _process,
    "metric": _metric,
    "stacks": _stacks,
    "entry": _entry,
}
