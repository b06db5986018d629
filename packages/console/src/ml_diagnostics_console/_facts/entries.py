"""The entries of companions and of `run`, gathered by process: what they show of its life. Pure.

Entries are joined with a run by host, pid and time, never by labels: the companion of a process does not know the run
before it starts. A pid is used again, always so in containers: an entry belongs to the life of a pid that was open at
its time. Values of another form are left out, since entries may be of a newer version, or damaged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cloud_tpu_diagnostics import entries as kinds
from cloud_tpu_diagnostics.reading import Snapshot, main_thread, parse_dumps
from google_cloud_mldiagnostics.reading import natural_number, number
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.journal import writer_start_ns
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.facts import (
    CompileBatch,
    ConsoleText,
    HangVerdict,
    Held,
    KernelState,
    MainStack,
    Pause,
    Signal,
    SigtermHandler,
)
from ml_diagnostics_console._facts.summaries import Summaries
from ml_diagnostics_console.verdict import Ref

__all__ = ["SILENT_BEFORE_NEXT_NS", "Life", "Lives", "ref_of"]

_AFTER_END_NS: Final = 5_000_000_000
"""The companion and `run` write after the end of a process, within this time, and open their journals then."""
_AFTER_END: Final = frozenset(
    {kinds.CONSOLE, kinds.SIGTERM_HANDLER, kinds.COMPILES, kinds.STEP_SUMMARY, kinds.LEFT_BLOCK, kinds.DUMP}
)
SILENT_BEFORE_NEXT_NS: Final = 10_000_000_000
"""The next process in place of one that was killed with its companion starts at least so long after the last entry:
a companion writes the steps each ten seconds, and a container has to load Python and JAX first."""
_FROM_START: Final = frozenset(
    {kinds.COMPILES, kinds.SIGTERM_HANDLER, kinds.STEP_SUMMARY, kinds.SNAPSHOT, kinds.HANG_SUSPECTED}
)
"""Kinds that only the companion of a process writes, and not `run` at its end."""
_LONGEST_SILENT_START_NS: Final = 86_400 * 1_000_000_000
"""An earlier time than this before the first entry is an error of the record."""
_MOST_STACKS: Final = 12
_MOST_HANGS: Final = 64
_MOST_COMPILES: Final = 4_096
_MOST_FRAMES: Final = 64
_MOST_SAYS: Final = 300


def ref_of(entry: LogEntry, shows: str = "") -> Ref:
    """Return the reference to an entry.

    Args:
        entry: The entry.
        shows: The sentence; empty takes that of the entry.
    """
    text = shows or one_line(str(entry.payload.get("message", "")), _MOST_SAYS)
    return Ref(entry.insert_id, entry.context.log_id, entry.timestamp_ns, entry.context.labels.get("host", ""), text)


class Life:
    """One process from its first entry to its end.

    Attributes:
        host: The host.
        pid: The process id, as text.
        first_ns: The first time at which it is known to run: that of its first entry, or before, of its first output.
        last_ns: The time of its last entry.
        ended_ns: The time of the entry on the end of the process; None while there is none.
        index: The last process index that it named; None if it named none.
        labels: The labels of its entries, each with its newest value: `run` and the companion know others.
        resource: The monitored resource of its newest entry that has one.
        ends: The entries on its end and on blocks that it left, the oldest first.
        companion: The first writer of its newest companion; empty if none has written yet.
    """

    def __init__(self, host: str, pid: str, entry: LogEntry) -> None:
        self.host, self.pid = host, pid
        self.first_ns = self.last_ns = entry.timestamp_ns
        self.ended_ns: int | None = None
        self.index: int | None = None
        self.labels: Mapping[str, str] = entry.context.labels
        self._newest_labels: Mapping[str, str] | None = None
        self.resource: Mapping[str, Any] = entry.context.resource
        self.ends: list[LogEntry] = []
        self.companion = ""
        self.step: tuple[int, LogEntry] | None = None
        self.phase = ""
        self.hangs: list[HangVerdict] = []
        self.kernel_states: list[KernelState] = []
        self.compiles: deque[CompileBatch] = deque(maxlen=_MOST_COMPILES)
        self.summaries = Summaries()
        self.signals: list[Signal] = []
        self.sigterm_handlers: list[SigtermHandler] = []
        self.console: dict[tuple[str, str], ConsoleText] = {}
        self.held: Held | None = None
        self._snapshots: deque[LogEntry] = deque(maxlen=_MOST_STACKS)
        self._dumps: deque[list[LogEntry]] = deque(maxlen=_MOST_STACKS)

    def add(self, entry: LogEntry) -> None:
        """Take the next entry of the process."""
        payload, kind = entry.payload, _kind_of(entry)
        if kind == kinds.HELD:  # Of its container: the process has ended.
            self._add_held(entry, payload)
            return
        self.last_ns = max(self.last_ns, entry.timestamp_ns)
        if entry.context.labels is not self._newest_labels:
            self._newest_labels = entry.context.labels
            self.labels = {**self.labels, **self._newest_labels}
            index = natural_number(self.labels.get("process_index"))
            if index is not None and not (index == 0 and self.index):  # 0 before JAX has started, and by `run`.
                self.index = index
        self.resource = entry.context.resource or self.resource
        step = natural_number(payload.get("step"))
        if step is not None:
            self.step = step, entry
        if isinstance(payload.get("phase"), str):
            self.phase = payload["phase"]
        if kind in _FROM_START and _is_first_writer(entry):
            self.companion = entry.context.writer or ""
        reader = _READERS.get(kind)
        if reader is not None:
            reader(self, entry, payload)

    def _was_alive(self, time_ns: int) -> None:
        """Take a time at which it ran already, though its first entry is later: most processes record no start."""
        if self.first_ns - _LONGEST_SILENT_START_NS < time_ns < self.first_ns:
            self.first_ns = time_ns

    def _add_end(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        self.ends.append(entry)
        if payload.get("kind") == kinds.JOB_ENDED and not payload.get("goes_on"):
            self.ended_ns = entry.timestamp_ns

    def _add_hang(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        self._was_alive(entry.timestamp_ns - round((number(payload.get("stuck_seconds")) or 0.0) * 1e9))
        if len(self.hangs) < _MOST_HANGS:
            self.hangs.append(
                HangVerdict(
                    entry.timestamp_ns,
                    str(payload.get("phase") or ""),
                    natural_number(payload.get("step")),
                    number(payload.get("stuck_seconds")) or 0.0,
                    number(payload.get("timeout_seconds")) or 0.0,
                    str(payload.get("stuck_frame") or ""),
                    ref_of(entry),
                )
            )

    def _add_kernel_state(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        if len(self.kernel_states) < _MOST_HANGS:
            self.kernel_states.append(
                KernelState(
                    entry.timestamp_ns,
                    _texts(payload.get("states")),
                    _texts(payload.get("wait_channels")),
                    number(payload.get("cpu_seconds")),
                    number(payload.get("main_thread_cpu_seconds")),
                    number(payload.get("seconds")),
                    ref_of(entry),
                )
            )

    def _add_summary(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        first, last = natural_number(payload.get("first_step")), natural_number(payload.get("last_step"))
        steps, wall = natural_number(payload.get("count")), _times(payload.get("wall_seconds"))
        if first is None or last is None or not steps or wall is None:
            return
        own, data, wait = (_times(payload.get(f"{name}_seconds")) for name in ("own", "data", "wait"))
        pauses = _pauses(payload["pauses"]) if "pauses" in payload else ()
        if self.summaries.add(entry, (first, last, steps), (wall, own, data, wait), _returns(payload), pauses):
            self.step = last, entry

    def _add_compiles(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        functions = payload.get("functions")
        by_name = {
            str(each.get("name", "")): natural_number(each.get("count")) or 0
            for each in (functions if isinstance(functions, list) else ())
            if isinstance(each, Mapping)
        }
        programs, seconds = natural_number(payload.get("count")) or 0, number(payload.get("seconds")) or 0.0
        time_ns = natural_number(payload.get("time_ns")) or entry.timestamp_ns
        self.compiles.append(CompileBatch(time_ns, programs, seconds, by_name, ref_of(entry)))

    def _add_signal(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        pid, uid = natural_number(payload.get("sender_pid")) or 0, natural_number(payload.get("sender_uid"))
        self.signals.append(Signal(entry.timestamp_ns, str(payload.get("signal", "")), pid, uid, ref_of(entry)))

    def _add_handler(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        time_ns = natural_number(payload.get("time_ns")) or entry.timestamp_ns
        handler, function = str(payload.get("handler", "")), str(payload.get("function") or "")
        self.sigterm_handlers.append(SigtermHandler(time_ns, handler, function, ref_of(entry)))

    def _add_console(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        stream, occasion = str(payload.get("stream", "")), str(payload.get("occasion", ""))
        shows = f"the last lines of std{stream}" if stream in ("out", "err") else "the last lines"
        text = str(payload.get("message", ""))
        times = _pairs(payload.get("times"))
        if times:
            self._was_alive(times[0][1])
        self.console[stream, occasion] = ConsoleText(
            entry.timestamp_ns,
            stream,
            occasion,
            text,
            ref_of(entry, shows),
            times=times,
            path=str(payload.get("path") or ""),
            is_of_python=payload.get("is_of_python") is True,
        )

    def _add_held(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        pid, until_ns = natural_number(payload.get("wrapper_pid")), natural_number(payload.get("until_ns"))
        if pid and until_ns:
            self.held = Held(entry.timestamp_ns, pid, until_ns, str(payload.get("released_by") or ""), ref_of(entry))

    def _add_snapshot(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        self._snapshots.append(entry)

    def _add_dump(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        part = natural_number(payload.get("part")) or 1
        if part > 1 and self._dumps:
            self._dumps[-1].append(entry)
        else:
            self._dumps.append([entry])

    def stacks(self) -> tuple[MainStack, ...]:
        """Return the last stacks of the main thread, the oldest first; parsed only now, since few processes need it."""
        found = [stack for entry in self._snapshots if (stack := _of_snapshot(entry)) is not None]
        found += [stack for parts in self._dumps if (stack := _of_dump(parts)) is not None]
        return tuple(sorted(found, key=lambda stack: stack.time_ns)[-_MOST_STACKS:])


_READERS: Final = {
    kinds.JOB_ENDED: Life._add_end,
    kinds.LEFT_BLOCK: Life._add_end,
    kinds.HANG_SUSPECTED: Life._add_hang,
    kinds.PROCESS_STATE: Life._add_kernel_state,
    kinds.STEP_SUMMARY: Life._add_summary,
    kinds.COMPILES: Life._add_compiles,
    kinds.SIGNAL: Life._add_signal,
    kinds.SIGTERM_HANDLER: Life._add_handler,
    kinds.CONSOLE: Life._add_console,
    kinds.SNAPSHOT: Life._add_snapshot,
    kinds.DUMP: Life._add_dump,
}


class Lives:
    """All processes of the companions' log, by host and pid."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, str], list[Life]] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Take entries in the order of time; those of other programs are skipped."""
        for entry in entries:
            if entry.payload.get("verb") != kinds.VERB:
                continue
            labels = entry.context.labels
            host, pid = labels.get("host", ""), labels.get("pid", "")
            lives = self._lives.setdefault((host, pid), [])
            if not lives or _is_of_next(lives[-1], entry):
                lives.append(Life(host, pid, entry))
            lives[-1].add(entry)

    def of_process(self, host: str, pid: int, started_ns: int, last_ns: int) -> Life | None:
        """Return the life of a process that is known from elsewhere; None if no companion recorded it.

        Args:
            host: The host.
            pid: The process id.
            started_ns: The time of its first event elsewhere.
            last_ns: The time of its last event elsewhere.
        """
        lives = self._lives.get((host, str(pid)), [])
        found = [
            life
            for life in lives
            if (life.ended_ns is None or life.ended_ns >= started_ns) and life.first_ns <= last_ns + _AFTER_END_NS
        ]
        if len(found) < 2 or all(life.ended_ns is not None for life in found[:-1]):
            return found[0] if found else None
        # One without a recorded end is over when the next one starts: the one that lived for most of the time is meant.
        return max(found, key=lambda life: min(life.last_ns, last_ns) - max(life.first_ns, started_ns))

    def labelled(self, names: Iterable[str]) -> list[Life]:
        """Return the lives with labels that name one of some jobs or runs, in the order of their first entries."""
        wanted = set(names)
        found = [
            life
            for lives in self._lives.values()
            for life in lives
            if life.labels.get("job") in wanted or life.labels.get("run") in wanted
        ]
        return sorted(found, key=lambda life: life.first_ns)


def _is_of_next(life: Life, entry: LogEntry) -> bool:
    """Return True if an entry belongs to the next process with the same pid."""
    if life.ended_ns is None:
        return _is_of_next_companion(life, entry)
    if 0 < writer_start_ns(entry.context.writer or "") <= life.ended_ns:  # Of a companion that served the ended one.
        return False
    kind = _kind_of(entry)
    if kind == kinds.LEFT_BLOCK and any(end.payload.get("kind") == kind for end in life.ends):
        return True
    if kind == kinds.JOB_ENDED:  # The companion and `run` both record the end.
        ended_ns = natural_number(entry.payload.get("ended_ns")) or entry.timestamp_ns
        return ended_ns > life.ended_ns + _AFTER_END_NS
    return not (kind in _AFTER_END and entry.timestamp_ns <= life.ended_ns + _AFTER_END_NS)


def _is_of_next_companion(life: Life, entry: LogEntry) -> bool:
    """Return True if another companion serves the pid, though no end is recorded: the first one was killed as well.

    A companion's first journal opens with the first entry that it has, and a second one serves the same process only
    after the job has left a block.
    """
    writer = entry.context.writer or ""
    is_other = bool(life.companion) and writer != life.companion and _is_first_writer(entry)
    return (
        is_other
        and not life.ends
        and _kind_of(entry) in _FROM_START
        and writer_start_ns(writer) > life.last_ns + SILENT_BEFORE_NEXT_NS
    )


def _is_first_writer(entry: LogEntry) -> bool:
    """Return True if an entry is of the first journal of its writer's process."""
    return (entry.context.writer or "").endswith("-0")


def _kind_of(entry: LogEntry) -> str:
    """Return the kind of an entry; empty if it is not a text, as in a damaged entry."""
    kind = entry.payload.get("kind")
    return kind if isinstance(kind, str) else ""


def _of_snapshot(entry: LogEntry) -> MainStack | None:
    payload = entry.payload
    groups = payload.get("groups")
    try:
        snapshot = Snapshot.from_json(payload)
    except ValueError:
        return None
    main = next((group for group in snapshot.groups if group.has_main), None)
    if main is None:
        return None
    encoded = [group for group in (groups if isinstance(groups, list) else ()) if isinstance(group, Mapping)]
    unchanged = next((number(group.get("unchanged_seconds")) for group in encoded if group.get("main")), None)
    frames = tuple(map(str, main.frames[:_MOST_FRAMES]))
    return _stack(entry, frames, "snapshot", unchanged or 0.0)


def _of_dump(parts: list[LogEntry]) -> MainStack | None:
    entry = parts[0]
    text = "\n".join(str(part.payload.get("message", "")).rstrip("\n") for part in parts)
    trigger = str(entry.payload.get("trigger", ""))
    for dump in reversed(parse_dumps(text)):
        main = main_thread(dump.threads)
        if main is not None:
            headline = dump.headline or str(entry.payload.get("headline") or "")
            return _stack(entry, tuple(map(str, main.frames[:_MOST_FRAMES])), trigger, 0.0, headline)
    return None


def _stack(entry: LogEntry, frames: tuple[str, ...], trigger: str, unchanged: float, headline: str = "") -> MainStack:
    payload = entry.payload
    shows = f"the main thread is in {frames[0]}" if frames else "the main thread has no Python frame"
    return MainStack(
        natural_number(payload.get("time_ns")) or entry.timestamp_ns,
        frames,
        natural_number(payload.get("step")),
        str(payload.get("phase") or ""),
        unchanged,
        trigger,
        ref_of(entry, shows),
        headline,
    )


def _times(value: object) -> tuple[float, float, float, float] | None:
    """Return the durations of a summary, in the order of `Times`: with a hundred thousand of them each call counts."""
    if type(value) is not dict:
        return None
    try:
        total, p50, p95, longest = value["sum"], value["p50"], value["p95"], value["max"]
        return (total, p50, p95, longest) if math.isfinite(total + p50 + p95 + longest) else None
    except (KeyError, TypeError, OverflowError):
        return None


def _returns(payload: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the returns from waits of a summary, with their steps."""
    step, time_ns = natural_number(payload.get("return_step")), natural_number(payload.get("return_ns"))
    if step is None or time_ns is None:
        return []
    others = _pairs(payload["returns"]) if "returns" in payload else ()
    return [(step, time_ns), *others]


def _pairs(value: object) -> tuple[tuple[int, int], ...]:
    """Return pairs of natural numbers, as in JSON."""
    found = []
    for pair in value if isinstance(value, list) else ():
        numbers = [natural_number(each) for each in pair] if isinstance(pair, list) and len(pair) == 2 else []
        first, second = numbers or (None, None)
        if first is not None and second is not None:
            found.append((first, second))
    return tuple(sorted(found))


def _pauses(value: object) -> tuple[Pause, ...]:
    """Return the saves and evaluations between the steps of a summary."""
    found = []
    for phase, encoded in value.items() if isinstance(value, Mapping) else ():
        pause = encoded if isinstance(encoded, Mapping) else {}
        times, total, longest = natural_number(pause.get("count")), number(pause.get("sum")), number(pause.get("max"))
        if times and total is not None and longest is not None:
            found.append(Pause(str(phase), times, total, longest))
    return tuple(found)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()
