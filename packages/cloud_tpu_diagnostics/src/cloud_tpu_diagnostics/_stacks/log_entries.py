"""The entries of a job, in the journal and in Cloud Logging: the newest stacks of each process."""

from __future__ import annotations

import itertools
import math
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ml_diagnostics_common.cloud_logging import quoted
from ml_diagnostics_common.entry import LogEntry, ProcessEndings
from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.exceptions import NoCloudError
from ml_diagnostics_common.journal import ProcessStart, processes_of_job, processes_that_ended
from ml_diagnostics_common.log_source import Cloud, LogSource, Query, notes_of
from ml_diagnostics_common.processes import has_ended

from cloud_tpu_diagnostics._dumps.grouping import MAIN_THREAD, ProcessDump
from cloud_tpu_diagnostics._dumps.parser import Dump, DumpParser, ThreadStack
from cloud_tpu_diagnostics._dumps.snapshot import Snapshot
from cloud_tpu_diagnostics._stacks.trace_files import interval_seconds, newest_of, with_endings
from cloud_tpu_diagnostics.entries import DUMP, HANG_SUSPECTED, JOB_ENDED, LEFT_BLOCK, LOG_ID, SNAPSHOT, VERB

__all__ = ["dumps_of", "read_job"]

_SECOND_NS: Final = 1_000_000_000
_TIMES_KEPT: Final = 10
_JUST_NS: Final = 10 * _SECOND_NS
_COMPANION_SECONDS: Final = 3.0
"""A companion records the end of its process within a tenth of a second, on a busy machine within a few."""
_POLL_SECONDS: Final = 0.05
_PID: Final = re.compile(r"[0-9]{1,9}")
_KINDS: Final = frozenset({SNAPSHOT, HANG_SUSPECTED, LEFT_BLOCK, JOB_ENDED})
_FIELDS: Final = ("step", "phase", "interval_seconds")


def read_job(job: str, *, since_seconds: float, notes: list[str]) -> list[ProcessDump]:
    """Return the newest stacks of each process of a job, from the journal and from Cloud Logging.

    Of a process of this machine that has just ended, its companion may still record the last stack: wait for that.

    Args:
        job: Its name, as the environment, a recorder or a run was given it; or the run's id.
        since_seconds: How far back from the newest entry processes are shown, and from now Cloud Logging is read.
        notes: Gets what could not be read.

    Raises:
        ConfigurationError: ML_DIAGNOSTICS_BACKEND has an unknown value.
        CredentialsError: It is `cloud`, and there is no project or no credentials.
    """
    _await_companions(job)
    cloud = Cloud.configured(logs_failures=False)
    source = LogSource(
        LOG_ID,
        cloud=cloud,
        queries=[Query(f"jsonPayload.verb={VERB} AND (labels.job={quoted(job)} OR labels.run={quoted(job)})")],
        start_ns=max(0, time.time_ns() - round(since_seconds * _SECOND_NS)),
    )
    selection = _Selection(job, processes_of_job(diagnostics_directory(), job))
    endings, latest = ProcessEndings(), _Latest()
    for entry in itertools.chain.from_iterable(source.read_new()):  # Holds no batch while the next one is read.
        endings.add([entry])
        if selection.may_have(entry):
            latest.add(entry, selection.life(entry))
    entries = {entry.insert_id: entry for entry in latest.entries(since_seconds) if selection.has(entry)}
    if cloud is not None and cloud.absence is not None and not isinstance(cloud.absence, NoCloudError):
        notes.append(f"only the journal was read: {cloud.absence}")
    notes += notes_of([source])
    return with_endings(dumps_of(entries.values()), endings=endings)


def _await_companions(job: str) -> None:
    """Wait until the ends of processes of a job are recorded that ended in the last seconds, for a few seconds."""
    since_ns = time.time_ns() - _JUST_NS
    ended = {
        (start.host, start.pid): start.started_ns
        for start in processes_that_ended(diagnostics_directory(), job, since_ns, except_logs={LOG_ID})
        if start.host == identity().host and _PID.fullmatch(start.pid) and has_ended(int(start.pid))
    }
    if not ended:
        return
    deadline = time.monotonic() + _COMPANION_SECONDS
    source = LogSource(LOG_ID)
    while True:
        for entry in itertools.chain.from_iterable(source.read_new()):
            if entry.payload.get("kind") == JOB_ENDED and entry.timestamp_ns > ended.get(_process_of(entry), math.inf):
                del ended[_process_of(entry)]
        if not ended or time.monotonic() >= deadline:
            return
        time.sleep(_POLL_SECONDS)


def _is_of(entry: LogEntry, job: str) -> bool:
    labels = entry.context.labels
    return job in (labels.get("job"), labels.get("run")) and entry.payload.get("verb") == VERB


class _Selection:
    """Selects the entries of one job: by their labels, and by the processes that recorded something of it.

    Entries of a companion do not name the job before a recorder or a run has a name. Process ids are reused, always so
    in containers: an entry belongs to a recorder of its process if that started before the process ended.
    """

    def __init__(self, job: str, starts: Iterable[ProcessStart]) -> None:
        self._job = job
        self._starts: dict[tuple[str, str], list[int]] = {}
        for start in starts:
            self._starts.setdefault((start.host, start.pid), []).append(start.started_ns)
        self._ends_ns: dict[tuple[str, str], list[int]] = {}

    def may_have(self, entry: LogEntry) -> bool:
        """Return True for what may be of the job, given entries in the order of time; `has` decides at the end."""
        payload, process = entry.payload, _process_of(entry)
        if payload.get("verb") != VERB or not (_is_of(entry, self._job) or process in self._starts):
            return False
        if payload.get("kind") == JOB_ENDED and not payload.get("goes_on"):
            self._ends_ns.setdefault(process, []).append(entry.timestamp_ns)
        return True

    def has(self, entry: LogEntry) -> bool:
        """Return True if a candidate is of the job."""
        if _is_of(entry, self._job):
            return True
        process, life = _process_of(entry), self.life(entry)
        return any(self._life(process, started_ns) == life for started_ns in self._starts.get(process, ()))

    def life(self, entry: LogEntry) -> int:
        """Return the number of processes with the process id of an entry that had ended before it."""
        return self._life(_process_of(entry), entry.timestamp_ns)

    def _life(self, process: tuple[str, str], time_ns: int) -> int:
        """Return how many processes of that id had ended by then; an end is the last entry of its life."""
        return bisect_left(self._ends_ns.get(process, ()), time_ns)


def _process_of(entry: LogEntry) -> tuple[str, str]:
    return entry.context.labels.get("host", ""), entry.context.labels.get("pid", "")


class _Latest:
    """Keeps of each process the entries that its newest stacks are made of: a job may have written for weeks."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, str, str, int], _Kept] = {}
        self._last_ns = 0

    def add(self, entry: LogEntry, life: int = 0) -> None:
        """Add an entry; the order is that of time.

        Args:
            entry: The entry.
            life: Distinguishes processes that had the same process id.
        """
        key = (*_process_of(entry), entry.context.labels.get("attempt", ""), life)
        kept = self._processes.get(key)
        if kept is None:
            kept = self._processes[key] = _Kept(entry)
        kept.add(entry)
        self._last_ns = entry.timestamp_ns

    def entries(self, since_seconds: float) -> Iterator[LogEntry]:
        """Yield what was kept of processes with an entry that is not older than the last one by more than this.

        An entry may be yielded several times.
        """
        for kept in self._processes.values():
            if kept.last_ns >= self._last_ns - since_seconds * _SECOND_NS:
                yield from kept.entries()


class _Kept:
    """The newest entries of one process."""

    def __init__(self, first: LogEntry) -> None:
        self._first = first
        self._dump: list[LogEntry] = []
        """The last dump, which may have several parts."""
        self._others: dict[Any, deque[LogEntry]] = {}
        """The last few of each other kind."""
        self._fields: dict[str, LogEntry] = {}
        """The last with each field that not every entry has."""
        self.last_ns = first.timestamp_ns

    def add(self, entry: LogEntry) -> None:
        self.last_ns = entry.timestamp_ns
        kind = entry.payload.get("kind")
        if kind == DUMP:
            if _is_first_part(entry):
                self._dump = []
            self._dump.append(entry)
        else:
            kind = kind if isinstance(kind, str) and kind in _KINDS else None
            self._others.setdefault(kind, deque(maxlen=_TIMES_KEPT)).append(entry)
        for name in _FIELDS:
            if name in entry.payload:
                self._fields[name] = entry

    def entries(self) -> Iterator[LogEntry]:
        yield self._first  # A process counts from its first entry.
        yield from self._dump
        yield from self._fields.values()
        for others in self._others.values():
            yield from others


def _is_first_part(dump: LogEntry) -> bool:
    part = dump.payload.get("part")
    return not isinstance(part, (int, float)) or part <= 1


def dumps_of(entries: Iterable[LogEntry]) -> list[ProcessDump]:
    """Return the newest state of each process, without processes that a later one of the same host and index replaced.

    The end of a process may be recorded seconds after the next one has started. One that ended well is replaced anyway,
    so that it does not appear beside a crash of the next.
    """
    records: dict[tuple[str, str, str], _Record] = {}
    for entry in sorted(entries, key=lambda entry: (entry.timestamp_ns, entry.sequence)):
        labels = entry.context.labels
        # Not by its index, which is 0 until jax.distributed has started.
        key = (labels.get("host", ""), labels.get("pid", ""), labels.get("attempt", ""))
        if key not in records:
            records[key] = _Record(labels, entry.timestamp_ns)
        records[key].take(entry)
    by_position: dict[tuple[str, str], list[_Record]] = {}
    for (host, _, _), record in records.items():
        by_position.setdefault((host, record.index), []).append(record)
    return [
        record.process_dump()
        for same in by_position.values()
        for record in same
        if not any(other.first_ns > record.replaced_after_ns for other in same if other is not record)
    ]


class _Record:
    """The state of one process by its entries; later ones replace earlier ones."""

    def __init__(self, labels: Mapping[str, str], first_ns: int) -> None:
        self.first_ns = self.last_ns = first_ns
        self.index = labels.get("process_index", "")
        """The index among all processes of the job, if known."""
        self._labels = labels
        self._threads: tuple[ThreadStack, ...] = ()
        self._step: int | None = None
        self._phase: str | None = None
        self._ended = ""
        self._has_ended_well = False
        self._goes_on = False
        """True if the end is that of a block, and the process continues."""
        self._ran_ns = first_ns
        self._texts: list[str] = []
        """The parts of the dump that is younger than the last snapshot."""
        self._times_ns: deque[int] = deque(maxlen=_TIMES_KEPT)
        """The times of the last snapshots."""
        self._stated_interval_seconds: float | None = None

    @property
    def replaced_after_ns(self) -> int:
        """When it was last known to run, if it ended well, else the time of its last entry."""
        return self._ran_ns if self._has_ended_well and not self._goes_on else self.last_ns

    def take(self, entry: LogEntry) -> None:
        """Take an entry that is younger than those before."""
        payload, self.last_ns = entry.payload, entry.timestamp_ns
        step, phase, kind = payload.get("step"), payload.get("phase"), payload.get("kind")
        is_end = kind in (JOB_ENDED, LEFT_BLOCK)
        if not is_end:
            self._ran_ns = entry.timestamp_ns
        self._take_index(entry.context.labels.get("process_index", ""), is_end=is_end)
        if isinstance(step, (int, float)) and step == step // 1:
            self._step = int(step)
        if isinstance(phase, str):
            self._phase = phase
        interval = payload.get("interval_seconds")
        if isinstance(interval, (int, float)) and interval > 0:
            self._stated_interval_seconds = float(interval)
        if is_end:
            self._ended = str(payload.get("message") or payload.get("how") or "exit reason unknown")
            self._goes_on = kind == LEFT_BLOCK or bool(payload.get("goes_on"))
            self._has_ended_well = payload.get("how") == "clean"
            return
        if self._goes_on:  # And is in a block again.
            self._ended = ""
        if kind == SNAPSHOT:
            self._take_snapshot(payload)
        elif kind == DUMP:
            self._take_dump(entry)

    def _take_index(self, index: str, *, is_end: bool) -> None:
        """Take the newest; but the companion that records the end never learns the index, and writes 0."""
        if index and not (is_end and index == "0" and self.index):
            self.index = index

    def _take_snapshot(self, payload: Mapping[str, Any]) -> None:
        try:
            snapshot = Snapshot.from_json(payload)
        except ValueError:
            return
        self._texts, self._threads = [], _threads_of(snapshot)
        self._times_ns.append(self.last_ns)

    def _take_dump(self, entry: LogEntry) -> None:
        if _is_first_part(entry):
            self._texts = []
        self._texts.append(str(entry.payload.get("message", "")))

    def process_dump(self) -> ProcessDump:
        """Return the process as its entries show it."""
        newest = self._newest_dump()
        index = self.index
        pid = self._labels.get("pid", "")
        host = self._labels.get("host", "") or "unknown host"
        return ProcessDump(
            process=host,
            host=host,
            process_index=int(index) if index.isdecimal() and len(index) < 10 else None,
            pid=int(pid) if pid.isdecimal() and len(pid) < 19 else 0,
            step=newest.step if newest is not None and newest.step is not None else self._step,
            phase=self._phase,
            time_ns=self.last_ns,
            threads=newest.threads if newest is not None else self._threads,
            headline=newest.headline if newest is not None else "",
            ended=self._ended,
            interval_seconds=self._interval_seconds(newest),
        )

    def _interval_seconds(self, newest: Dump | None) -> float | None:
        """Return the interval in the entries or the dump, else the longest time between two of the last snapshots."""
        stated = self._stated_interval_seconds or (interval_seconds(newest) if newest is not None else None)
        gaps = [later - earlier for earlier, later in itertools.pairwise(self._times_ns)]
        return stated or (max(gaps) / _SECOND_NS if gaps else None)

    def _newest_dump(self) -> Dump | None:
        if not self._texts:
            return None
        parser, dumps = DumpParser(), []
        for text in self._texts:
            dumps += parser.feed(text.encode("utf-8", "surrogatepass"))
        return newest_of(dumps + parser.finish())


def _threads_of(snapshot: Snapshot) -> tuple[ThreadStack, ...]:
    """Return as many threads as there were, the main thread last, as faulthandler writes them."""
    threads = []
    for group in reversed(snapshot.groups):
        names = list(group.names[: group.threads]) + ["0x0"] * max(0, min(group.threads, 100_000) - len(group.names))
        if group.has_main:
            names = [*names[1:], MAIN_THREAD]
        threads += [ThreadStack(name, False, group.frames) for name in names]
    return tuple(threads)
