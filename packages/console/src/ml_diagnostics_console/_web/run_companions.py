"""The records of the companions of a run: stacks, last lines, events; read when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cloud_tpu_diagnostics import entries as kinds
from cloud_tpu_diagnostics.reading import StackHistory
from google_cloud_mldiagnostics.reading import natural_number
from ml_diagnostics_common.entry import COMPANION_LOG_ID, LogEntry
from ml_diagnostics_common.reader import JournalReader

from ml_diagnostics_console._web.sentences import safe_line
from ml_diagnostics_console._web.writers import Writer

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["CompanionEvent", "LastLines", "RunCompanions", "companions_of"]

_SECOND_NS: Final = 1_000_000_000
_MARGIN_NS: Final = 600 * _SECOND_NS
_MOST_EVENTS: Final = 2_000
_EVENTS: Final[Mapping[str, str]] = {
    kinds.HANG_SUSPECTED: "hung",
    kinds.JOB_ENDED: "ended",
    kinds.SIGNAL: "asked",
    kinds.FAST_FAIL: "note",
    kinds.HELD: "note",
}
"""The kinds of entries that are events of the run, with their kinds on the page."""


class CompanionEvent(NamedTuple):
    """Something that happened to a process.

    Attributes:
        time_ns: When, in ns since 1970.
        kind: hung, ended, asked or note.
        host: The host.
        pid: The process id.
        text: The sentence, safe to show.
        insert_id: The entry.
        how: The kind of an end: clean, exception, exit, signal and so on.
    """

    time_ns: int
    kind: str
    host: str
    pid: int
    text: str
    insert_id: str
    how: str = ""


class LastLines(NamedTuple):
    """The last lines of a stream of a process, as an entry has them.

    Attributes:
        time_ns: When they were recorded, in ns since 1970.
        stream: out, err or out+err.
        text: The lines, without secrets.
        times: Numbers of lines with the time by which these were printed.
        path: The file that the process printed to; empty if it is not one.
        occasion: end or hang.
        insert_id: The entry.
        is_of_python: True if lines of native code are missing.
    """

    time_ns: int
    stream: str
    text: str
    times: tuple[tuple[int, int], ...]
    path: str
    occasion: str
    insert_id: str
    is_of_python: bool


class RunCompanions:
    """The entries of the companions of one run.

    Args:
        root: The diagnostics folder.

    Attributes:
        stacks: The stacks of its processes.
        events: The events of its processes, by time.
        lines: The newest last lines by host, pid and stream.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: frozenset[str] = frozenset()
        self._reader: JournalReader | None = None
        self.stacks = StackHistory()
        self.events: list[CompanionEvent] = []
        self.lines: dict[tuple[str, int, str], LastLines] = {}

    @property
    def writers(self) -> frozenset[str]:
        """The writers of the run's entries in the companions' log."""
        return self._names

    def refresh(self, run: RunData) -> bool:
        """Read what is new; return True if there was anything."""
        processes = {(process.host, process.pid) for attempt in run.view.attempts for process in attempt.processes}
        start_ns = round(run.started_s * _SECOND_NS) - _MARGIN_NS
        end_ns = round((run.ended_s or run.now_s) * _SECOND_NS) + _MARGIN_NS
        jobs = {run.id, run.name, *run.job_names}
        names = frozenset(
            writer.name
            for writer in run.journal.companions.refresh().values()
            if _is_of(writer, run.id, jobs, processes, start_ns, end_ns)
        )
        if names != self._names:
            position = None if self._reader is None else self._reader.position()
            self._reader = JournalReader(COMPANION_LOG_ID, root=self._root, position=position, writers=names)
            self._names = names
        is_new = False
        if self._reader is not None:
            for batch in self._reader.read_new():
                is_new = True
                self.stacks.add(batch)
                for entry in batch:
                    self._add(entry)
        if is_new:
            self.events.sort()
            del self.events[:-_MOST_EVENTS]
        return is_new

    def _add(self, entry: LogEntry) -> None:
        payload = entry.payload
        kind = payload.get("kind")
        if kind == kinds.CONSOLE:
            self._add_lines(entry, payload)
        elif isinstance(kind, str) and kind in _EVENTS:
            host, pid = entry.context.labels.get("host", ""), natural_number(entry.context.labels.get("pid")) or 0
            how = str(payload.get("how") or "")
            text = safe_line(payload.get("message") or kind)
            time_ns = natural_number(payload.get("ended_ns")) or entry.timestamp_ns
            self.events.append(CompanionEvent(time_ns, _EVENTS[kind], host, pid, text, entry.insert_id, how))

    def _add_lines(self, entry: LogEntry, payload: Mapping[str, Any]) -> None:
        labels = entry.context.labels
        stream = str(payload.get("stream") or "out+err")
        key = labels.get("host", ""), natural_number(labels.get("pid")) or 0, stream
        known = self.lines.get(key)
        if known is None or known.time_ns <= entry.timestamp_ns:
            times = payload.get("times")
            text, path = str(payload.get("message") or ""), str(payload.get("path") or "")
            pairs = [_pair(pair) for pair in times] if isinstance(times, list) else []
            known_times = tuple(pair for pair in pairs if pair[1])
            occasion, is_of_python = str(payload.get("occasion") or ""), payload.get("is_of_python") is True
            self.lines[key] = LastLines(
                entry.timestamp_ns, stream, text, known_times, path, occasion, entry.insert_id, is_of_python
            )


def _pair(pair: object) -> tuple[int, int]:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return 0, 0
    return natural_number(pair[0]) or 0, natural_number(pair[1]) or 0


def _is_of(
    writer: Writer,
    run_id: str,
    jobs: set[str],
    processes: set[tuple[str, int]],
    start_ns: int,
    end_ns: int,
) -> bool:
    """Return True if a writer is of the run: it names it, or one of its processes or its job in its time."""
    if writer.run and writer.run in (run_id, *jobs):
        return writer.run == run_id or start_ns <= writer.started_ns <= end_ns
    if writer.run:
        return False
    is_known = writer.job in jobs or (writer.host, natural_number(writer.pid) or 0) in processes
    return is_known and start_ns <= writer.started_ns <= end_ns


def companions_of(run: RunData) -> RunCompanions:
    """Return what the companions of a run recorded, brought up to date."""
    found = run.part(RunCompanions, lambda: RunCompanions(run.journal.root))
    run.cached("companions", lambda: found.refresh(run))
    return found
