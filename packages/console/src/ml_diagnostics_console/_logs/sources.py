"""Sources of the text of a process: files of `run`, its own log file, its pod, or the entries of its last lines.

Each is read in place; nothing is copied or stored. A source that is asked again returns only what is new.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cloud_tpu_diagnostics.console_files import ConsoleFile, console_files, console_paths
from ml_diagnostics_common.entry import format_timestamp, parse_timestamp
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.files import open_regular
from ml_diagnostics_common.processes import process_started_ns
from ml_diagnostics_common.redaction import redact_text

from ml_diagnostics_console._facts.facts import ConsoleText, ProcessFacts
from ml_diagnostics_console._facts.kubernetes_facts import PodFacts
from ml_diagnostics_console._facts.programs import ProgramError, ask
from ml_diagnostics_console._facts.targets import Cluster, Target

__all__ = ["Log", "Text"]

_KUBECTL_SECONDS: Final = 20.0
_MOST_BYTES: Final = 64 * 2**20
_STARTED_NS: Final = 5_000_000_000
"""The kernel's time of a start is in whole seconds, and follows changes of the clock."""
_LINE_BYTES: Final = 40
"""So many lines of a pod are read as have the wanted bytes at this length."""
_DELAY_NS: Final = 5_000_000_000
"""The last lines of a process may be written so long after the last event that it records."""
_RECORDED_BYTES: Final = 65_536
"""The last bytes of a stream, of which `run` writes an entry at the end."""
_COMPARED: Final = 4096
_MARGIN_NS: Final = 1_000_000_000


class Text(NamedTuple):
    """A part of what a process printed.

    Attributes:
        stream: out, err or out+err.
        text: The text.
        times: Numbers of its lines with the time by which they were printed, in ns since 1970, by the host's clock.
        origin: The source, for the user.
    """

    stream: str
    text: str
    times: tuple[tuple[int, int], ...]
    origin: str


class _Source(Protocol):
    def read(self, most_bytes: int | None, since_ns: int | None) -> list[Text]: ...


class Log:
    """The text of one target, from the first of its sources that has something.

    Args:
        root: The diagnostics folder.
        cluster: The cluster; None if it is not to be asked.
        prefers_all: True if all of the text is wanted, not only the last lines.
        needs_times: True if text without times is of no use.
        files: The files of `run` on the host of the process; None searches for them at each read.
    """

    def __init__(
        self,
        root: Path,
        cluster: Cluster | None,
        *,
        prefers_all: bool = False,
        needs_times: bool = False,
        files: Sequence[ConsoleFile] | None = None,
    ) -> None:
        self._root, self._cluster, self._files = root, cluster, files
        self._prefers_all, self._needs_times = prefers_all, needs_times
        self._chosen = ""
        self._ends: dict[Path, tuple[int, int]] = {}
        self._sizes: dict[str, int] = {}
        self._seen: set[str] = set()
        self._pods: dict[str, _PodLog] = {}

    @property
    def is_found(self) -> bool:
        """True once there was something."""
        return bool(self._chosen)

    def read(self, target: Target, most_bytes: int | None, since_ns: int | None = None) -> list[Text]:
        """Return what is new since the last call.

        Args:
            target: The target, as far as it is known now.
            most_bytes: The last bytes of each stream; None for all that is kept.
            since_ns: The time by the clock of the host before which text is not needed.

        Raises:
            ProgramError: kubectl does not answer, and nothing else has the text.
        """
        failure: ProgramError | None = None
        for name, source in self._sources_of(target):
            if self._chosen not in ("", name):
                continue
            try:
                texts = source.read(most_bytes, since_ns)
            except ProgramError as error:
                failure = error
                continue
            if texts and not (self._needs_times and not any(text.times for text in texts)):
                self._chosen = name
                return sorted(texts, key=lambda text: text.stream == "err")
        if failure is not None:
            raise failure
        return []

    def _sources_of(self, target: Target) -> Iterator[tuple[str, _Source]]:
        process, pod = target.process, target.pod
        if process is not None:
            yield "files of run", _RunFiles(self._files_of(process), self._ends)
            yield "log file", _LogFiles(_paths_of(process), self._sizes)
        of_pod: list[tuple[str, _Source]] = []
        if pod is not None and self._cluster is not None and not pod.is_gone:
            log = self._pods.setdefault(pod.uid, _PodLog(pod, self._cluster))
            log.pod = pod
            of_pod = [("pod", log)]
        if self._prefers_all:
            yield from of_pod
        if process is not None:
            yield "entries", _Entries(process.console, self._seen)
        if not self._prefers_all:
            yield from of_pod

    def _files_of(self, process: ProcessFacts) -> _Files:
        return _files_of(process, console_files(self._root) if self._files is None else self._files)


# --- Files of `run` -----------------------------------------------------------------------------------


class _Files(NamedTuple):
    files: Sequence[ConsoleFile]
    is_sure: bool = True


def _files_of(process: ProcessFacts, files: Iterable[ConsoleFile]) -> _Files:
    """Return the files of a process; those of the shell that `run` has started, if it is not that process itself.

    Of the files of its time, those of its shell end as the entry of the last lines does, which `run` has written.
    Without one such file it may be that of another job at the same time: the nearest is returned, and marked.
    """
    on_host = [file for file in files if file.host == process.host]
    if own := [file for file in on_host if file.pid == process.pid]:
        return _Files(own)
    ended_ns = process.end.ended_ns or process.last_event_ns
    distances: dict[int, int] = {}
    for file in on_host:
        with contextlib.suppress(OSError):
            written_ns = file.path.stat().st_mtime_ns
            if written_ns >= process.started_ns and file.first_ns() <= ended_ns + _DELAY_NS:
                distance = abs(written_ns - ended_ns)
                distances[file.pid] = min(distance, distances.get(file.pid, distance))
    linked = {file.pid for file in on_host if file.pid in distances and _ends_as_recorded(file, process.console)}
    nearest = min(distances, key=lambda pid: distances[pid], default=None)
    is_sure = len(linked) == 1
    chosen = linked.pop() if is_sure else nearest
    return _Files([file for file in on_host if file.pid == chosen], is_sure)


def _ends_as_recorded(file: ConsoleFile, recorded: Sequence[ConsoleText]) -> bool:
    """Return True if the last lines of a file are those of the entry that `run` has written at the end."""
    of_run = [text for text in recorded if text.occasion == "end" and not text.is_of_python and not text.path]
    lines = next((text.text[-_COMPARED:] for text in of_run if text.stream == file.stream), "")
    if len(lines) == _COMPARED:
        lines = lines.partition("\n")[2]
    printed = file.read(_RECORDED_BYTES).data.decode("utf-8", "replace") if lines else ""
    return bool(lines) and redact_text(printed).endswith(lines)


class _RunFiles(NamedTuple):
    found: _Files
    ends: dict[Path, tuple[int, int]]

    def read(self, most_bytes: int | None, since_ns: int | None) -> list[Text]:
        found = []
        for file in self.found.files:
            printed = file.read(most_bytes, self.ends.get(file.path))
            self.ends[file.path] = printed.end
            if printed.data:
                times = _by_line(printed.data, printed.times)
                origin = f"{'' if self.found.is_sure else 'possibly of this process: '}{file.path}"
                found.append(Text(file.stream, printed.data.decode("utf-8", "replace"), times, origin))
        return found


def _by_line(data: bytes, times: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return by when so many lines were printed, from times by position."""
    found, lines, position = [], 0, 0
    for end, time_ns in times:
        lines += data.count(b"\n", position, end)
        position = end
        found.append((lines + (end == len(data) and not data.endswith(b"\n")), time_ns))
    return tuple(found)


# --- A log file that the launcher has made -------------------------------------------------------------


def _paths_of(process: ProcessFacts) -> dict[str, str]:
    """Return the files that a process of this machine prints to, by stream; of one that has ended, as recorded."""
    if process.host != identity().host:
        return {}
    recorded = {text.stream: text.path for text in process.console if text.path}
    started_ns = process_started_ns(process.pid)
    if started_ns is None or started_ns > process.started_ns + _STARTED_NS:  # None, or another one with its pid.
        return recorded
    paths = {name: path for name, path in console_paths(process.pid).items() if not path.startswith("/memfd:")}
    if len(paths) == 2 and len(set(paths.values())) == 1:
        return {"out+err": paths["out"]}
    return paths or recorded


class _LogFiles(NamedTuple):
    paths: Mapping[str, str]
    sizes: dict[str, int]

    def read(self, most_bytes: int | None, since_ns: int | None) -> list[Text]:
        found = []
        for stream, path in self.paths.items():
            try:
                with os.fdopen(open_regular(path), "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    earliest = self.sizes.get(path, 0)
                    earliest = 0 if earliest > size else earliest
                    file.seek(max(earliest, size - min(_MOST_BYTES, most_bytes or _MOST_BYTES)))
                    data = file.read(_MOST_BYTES)
                    self.sizes[path] = file.tell()
            except (OSError, ValueError):
                continue
            if data:
                found.append(Text(stream, data.decode("utf-8", "replace"), (), f"written to {path}, not by us"))
        return found


# --- The last lines, as entries ------------------------------------------------------------------------


class _Entries(NamedTuple):
    texts: Sequence[ConsoleText]
    seen: set[str]

    def read(self, most_bytes: int | None, since_ns: int | None) -> list[Text]:
        new = [text for text in self.texts if text.ref.id not in self.seen]
        self.seen.update(text.ref.id for text in new)
        chosen = {text.stream: text for text in sorted(new, key=lambda text: text.occasion == "end")}
        return [_text_of(text, most_bytes) for text in chosen.values()]


def _text_of(recorded: ConsoleText, most_bytes: int | None) -> Text:
    text = recorded.text
    if most_bytes is not None:
        text = text.encode("utf-8", "replace")[-most_bytes:].decode("utf-8", "replace")
    dropped = recorded.text.count("\n") - text.count("\n")
    times = tuple((count - dropped, time_ns) for count, time_ns in recorded.times if count > dropped)
    origin = "recorded at a hang" if recorded.occasion == "hang" else "recorded at its end"
    if recorded.is_of_python:
        origin += "; only what Python printed"
    if recorded.path:
        origin += f"; written to {recorded.path}, not by us"
    return Text(recorded.stream, text, times, origin)


# --- The log of a pod ----------------------------------------------------------------------------------


@dataclass
class _PodLog:
    pod: PodFacts
    cluster: Cluster
    _last_ns: int = 0
    _last_lines: set[str] = field(default_factory=set)

    def read(self, most_bytes: int | None, since_ns: int | None) -> list[Text]:
        start_ns = self._last_ns or (since_ns or 0) - _MARGIN_NS
        options = ["--timestamps", f"--container={self._container()}"]
        if start_ns > 0:
            options.append(f"--since-time={format_timestamp(start_ns)}")
        elif most_bytes is not None:
            options.append(f"--tail={max(1, most_bytes // _LINE_BYTES)}")
        if self._was_restarted():
            options.append("--previous")
        argv = self.cluster.argv("logs", *options, f"pod/{self.pod.name}")
        answer = ask(argv, timeout_seconds=_KUBECTL_SECONDS, most_bytes=_MOST_BYTES)
        if answer.exit_code:
            raise ProgramError(answer.errors.splitlines()[-1] if answer.errors else "kubectl logs failed")
        lines = [line.partition(" ") for line in answer.output.decode("utf-8", "replace").splitlines()]
        timed = [(time_ns, line) for stamp, _, line in lines if (time_ns := _time_of(stamp)) is not None]
        new = [
            each for each in timed if each[0] > self._last_ns or (each[0] == self._last_ns and self._is_new(each[1]))
        ]
        if timed:
            self._last_ns = timed[-1][0]
            self._last_lines = {line for time_ns, line in timed if time_ns == self._last_ns}
        if most_bytes is not None:
            new = _last_bytes(new, most_bytes)
        text = "".join(f"{line}\n" for _, line in new)
        times = tuple((number, time_ns) for number, (time_ns, _) in enumerate(new, 1))
        return [Text("out+err", text, times, f"kubectl logs pod/{self.pod.name}")] if new else []

    def _is_new(self, line: str) -> bool:
        return line not in self._last_lines

    def _container(self) -> str:
        return self.pod.main_containers[0].name if self.pod.main_containers else ""

    def _was_restarted(self) -> bool:
        """Return True if the container waits to be started again: its last log is that of the one before."""
        container = next(iter(self.pod.main_containers), None)
        return container is not None and bool(container.waiting_reason) and bool(container.ends)


def _last_bytes(lines: list[tuple[int, str]], most_bytes: int) -> list[tuple[int, str]]:
    size, first = 0, len(lines)
    while first and size + len(lines[first - 1][1]) < most_bytes:
        first -= 1
        size += len(lines[first][1]) + 1
    return lines[min(first, len(lines) - 1) :] if lines else []


def _time_of(stamp: str) -> int | None:
    try:
        return parse_timestamp(stamp)
    except ValueError:
        return None
