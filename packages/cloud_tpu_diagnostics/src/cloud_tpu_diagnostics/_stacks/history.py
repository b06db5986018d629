"""The stacks of a job at any moment, from the entries of its companions: groups, odd ones, and for how long. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ml_diagnostics_common.entry import LogEntry
from msgspec import structs

from cloud_tpu_diagnostics._dumps.grouping import (
    JobPicture,
    ProcessDump,
    ProcessGroup,
    activity_of,
    comparable_frames,
    group_processes,
    main_thread,
    name_processes,
)
from cloud_tpu_diagnostics._stacks.log_entries import dumps_of
from cloud_tpu_diagnostics.entries import DUMP, HANG_SUSPECTED, JOB_ENDED, LEFT_BLOCK, SNAPSHOT, VERB

__all__ = ["StackHistory", "StackPicture", "odd_groups"]

_SECOND_NS: Final = 1_000_000_000
_TOGETHER_NS: Final = 30 * _SECOND_NS
"""Stacks of different processes within this time are of one moment: a hang is noticed on all hosts within seconds."""
_KEPT: Final = 64
"""Stacks of a process: at the usual interval of 10 minutes, those of 10 hours."""
_HANGS_KEPT: Final = 16
_ENDS: Final = (JOB_ENDED, LEFT_BLOCK)
_SHOWN: Final = (SNAPSHOT, DUMP, HANG_SUSPECTED, *_ENDS)
"""The kinds by which a process is known."""
_SYNC: Final = "sync"
"""The phase in which a loop waits for its devices, as it marks itself."""

_NOT_OF_RUN: Final = ("", "0")
"""The attempt in the entries of a process that was not started by a run."""

_Process = tuple[str, str, str]
"""Host, pid and attempt."""


def _key(entry: LogEntry) -> _Process:
    labels = entry.context.labels
    return labels.get("host", ""), labels.get("pid", ""), labels.get("attempt", "")


class StackPicture(NamedTuple):
    """The processes of a job at one moment."""

    time_ns: int
    """The moment, in ns since 1970; 0 without stacks."""
    picture: JobPicture
    odd: frozenset[int]
    """Indices in `picture.groups`: see `odd_groups`."""
    unchanged_seconds: tuple[float, ...]
    """For how long the main threads of each group had been as they are: the longest time of its processes."""


class StackHistory:
    """The last stacks of each process of a job. Entries are added in the order of time; all are of one job."""

    def __init__(self) -> None:
        self._processes: dict[_Process, _Stacks] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the companions of the job; those without stacks show that a process still runs."""
        for entry in entries:
            if entry.payload.get("verb") != VERB:
                continue
            key = _key(entry)
            if key not in self._processes and key[2] in _NOT_OF_RUN:
                entry = self._of_same_process(entry, key)
                key = _key(entry)
            stacks = self._processes.get(key)
            if stacks is None and entry.payload.get("kind") not in _SHOWN:
                continue
            if stacks is None:
                stacks = self._processes[key] = _Stacks(entry)
            stacks.add(entry)

    def _of_same_process(self, entry: LogEntry, key: _Process) -> LogEntry:
        """Return an entry of the parent of a process, which knows no attempt, with the labels of that process."""
        known = [stacks for other, stacks in self._processes.items() if other[:2] == key[:2] and other != key]
        if not known:
            return entry
        newest = max(known, key=lambda stacks: stacks.first.timestamp_ns)
        return structs.replace(entry, context=newest.first.context)

    def moments(self) -> list[int]:
        """Return the times at which the processes of the job were seen, in ns since 1970, the oldest first."""
        taken = sorted(
            (entry.timestamp_ns, key)
            for key, stacks in self._processes.items()
            for entry in stacks.stacks
            if entry.payload.get("part", 1) == 1
        )
        moments: list[int] = []
        first_ns, seen = 0, set[_Process]()
        for time_ns, key in taken:
            if moments and key not in seen and time_ns - first_ns <= _TOGETHER_NS:
                moments[-1] = time_ns
            else:
                moments.append(time_ns)
                first_ns, seen = time_ns, set()
            seen.add(key)
        return moments

    def at(self, time_ns: int | None = None, *, now_ns: int | None = None) -> StackPicture:
        """Return the processes at a moment.

        Args:
            time_ns: The moment: the last stacks of each process by then. None is the newest of all.
            now_ns: Now, if the job may still run: a process with an overdue stack is silent. None for a job that has
                ended: the result is the last moment before its end.
        """
        moments = self.moments()
        if time_ns is None:
            last_ns = moments[-1] if moments else 0
        else:
            position = bisect_right(moments, time_ns)
            last_ns = moments[max(0, position - 1)] if moments else 0
        is_now = time_ns is None and now_ns is not None
        dumps = name_processes(dumps_of(self._entries(None if is_now else last_ns)))
        picture = group_processes(dumps, now_ns=now_ns if is_now else max(last_ns, 1))
        unchanged = tuple(self._unchanged_seconds(group, last_ns) for group in picture.groups)
        return StackPicture(last_ns, picture, odd_groups(picture), unchanged)

    def _entries(self, until_ns: int | None) -> Iterator[LogEntry]:
        for stacks in self._processes.values():
            known = stacks.entries()
            yield from known if until_ns is None else (entry for entry in known if entry.timestamp_ns <= until_ns)

    def _unchanged_seconds(self, group: ProcessGroup, time_ns: int) -> float:
        wanted = {(dump.host, str(dump.pid)) for dump in group.processes}
        frames = comparable_frames(group.frames)
        since = [
            stacks.since_ns(frames, time_ns)
            for (host, pid, _), stacks in self._processes.items()
            if (host, pid) in wanted and stacks.first.timestamp_ns <= time_ns
        ]
        return max(0.0, (time_ns - min(since, default=time_ns)) / _SECOND_NS)


class _Stacks:
    """The kept entries of one process."""

    def __init__(self, first: LogEntry) -> None:
        self.first = self.last = first
        self.stacks: deque[LogEntry] = deque(maxlen=_KEPT)
        self._hangs: deque[LogEntry] = deque(maxlen=_HANGS_KEPT)
        self._ends: deque[LogEntry] = deque(maxlen=_HANGS_KEPT)

    def add(self, entry: LogEntry) -> None:
        kind = entry.payload.get("kind")
        if kind in (SNAPSHOT, DUMP):
            self.stacks.append(entry)
        elif kind == HANG_SUSPECTED:
            self._hangs.append(entry)
        elif kind in _ENDS:
            self._ends.append(entry)
        if entry.timestamp_ns >= self.last.timestamp_ns:
            self.last = entry

    def entries(self) -> list[LogEntry]:
        """Return the entries, each once."""
        known = itertools.chain([self.first], self.stacks, self._hangs, self._ends, [self.last])
        return list({id(entry): entry for entry in known}.values())

    def since_ns(self, frames: tuple[object, ...], time_ns: int) -> int:
        """Return since when the main thread has been in frames, going back from a moment; that moment if it is not."""
        since_ns = time_ns
        for entry in reversed(self.stacks):
            if entry.timestamp_ns > time_ns:
                continue
            found = _main_frames(entry)
            if found is not None and found != frames:
                break
            if found is not None:
                since_ns = entry.timestamp_ns
        for hang in self._hangs:
            seconds = hang.payload.get("stuck_seconds")
            is_of_it = since_ns <= hang.timestamp_ns + _TOGETHER_NS and hang.timestamp_ns <= time_ns
            if is_of_it and since_ns < time_ns + 1 and isinstance(seconds, (int, float)):
                since_ns = min(since_ns, hang.timestamp_ns - round(seconds * _SECOND_NS))
        return since_ns


def _main_frames(entry: LogEntry) -> tuple[object, ...] | None:
    """Return the frames of the main thread in an entry, in comparable form; None if it has none."""
    dumps = dumps_of([entry])
    main = main_thread(dumps[0].threads) if dumps else None
    return comparable_frames(main.frames) if main is not None and main.frames else None


def odd_groups(picture: JobPicture) -> frozenset[int]:
    """Return the indices of the groups that the others wait for; empty if that cannot be decided.

    Most processes of a job that is stuck wait in one frame: the largest group, or in a job of few processes the one
    that marks that it waits for its devices. Of the other groups those are odd that do not wait themselves.
    """
    groups = picture.groups
    if len(groups) < 2:
        return frozenset()
    sizes = [len(group.processes) for group in groups]
    waiting = [index for index, group in enumerate(groups) if _is_marked(group.processes)]
    if sizes[0] > max(1, sizes[1]):
        most = 0
    elif len(waiting) == 1:
        most = waiting[0]
    else:
        return frozenset()
    others = [index for index in range(len(groups)) if index != most]
    return frozenset(index for index in others if not _waits(groups[index]))


def _is_marked(processes: Iterable[ProcessDump]) -> bool:
    return all(dump.phase == _SYNC for dump in processes)


def _waits(group: ProcessGroup) -> bool:
    return _is_marked(group.processes) or activity_of(group.frames).text.startswith("waits")
