"""The logs of a run: each stream of each process, where its text is, and its lines with their times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cloud_tpu_diagnostics.console_files import ConsoleFile, console_files
from google_cloud_mldiagnostics.reading import ProcessView
from ml_diagnostics_common.entry import COMPANION_LOG_ID, format_timestamp
from ml_diagnostics_common.redaction import redact_text

from ml_diagnostics_console._facts.building import process_of_view
from ml_diagnostics_console._facts.facts import ConsoleText
from ml_diagnostics_console._facts.targets import Target
from ml_diagnostics_console._logs.lines import Line, lines_of, safe
from ml_diagnostics_console._logs.sources import Log, Text
from ml_diagnostics_console._web.run_companions import CompanionEvent, LastLines, companions_of
from ml_diagnostics_console.verdict import Ref

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["COMPANION", "STREAMS", "LogProcess", "Part", "log_processes", "part_of", "printable_lines"]

STREAMS: Final = {"out": "stdout", "err": "stderr", "out+err": "output"}
"""The names of streams on the page: `output` is both in one."""
COMPANION: Final = "companion"
"""The stream of what the companion of a process reports."""
_KEY_START: Final = b"-----BEGIN "
_KEY_END: Final = b"-----END "
_LONGEST_KEY_BYTES: Final = 16_384


class LogProcess:
    """One process that may have printed something.

    Args:
        process: The process.
        name: Its name on the page: its host, and its index if the host has several.
        console: The last lines that its companion recorded.
        events: The reports of its companion.
        root: The diagnostics folder.
        files: The files of `run` on its host.
    """

    def __init__(
        self,
        process: ProcessView,
        name: str,
        console: Sequence[ConsoleText],
        events: Sequence[CompanionEvent],
        root: Path,
        files: Sequence[ConsoleFile],
    ) -> None:
        self.name, self.host = name, process.host
        self.index, self.pid, self.attempt = process.process_index, process.pid, process.attempt
        self._events = events
        self._root, self._files = root, files
        self._process, self._console = process, console

    def texts(self, most_bytes: int | None = None, *, is_dated: bool = False) -> list[Text]:
        """Return its streams as they are now, with the names of `STREAMS`, its companion's reports last.

        Args:
            most_bytes: The last bytes of each; None for all that is kept.
            is_dated: True for reports that start with their time.
        """
        facts = replace(process_of_view(self._process), console=tuple(self._console))
        target = Target(self.name, self.host, facts)
        found = Log(self._root, None, prefers_all=True, files=self._files).read(target, most_bytes)
        texts = [text._replace(stream=STREAMS.get(text.stream, text.stream)) for text in found]
        return [*texts, self._reports(is_dated=is_dated)] if self._events else texts

    def _reports(self, *, is_dated: bool) -> Text:
        dates = [f"{format_timestamp(event.time_ns)[:23]}Z " if is_dated else "" for event in self._events]
        lines = [f"{date}{event.text}\n" for date, event in zip(dates, self._events, strict=True)]
        times = tuple((number, event.time_ns) for number, event in enumerate(self._events, 1))
        return Text(COMPANION, "".join(lines), times, "reported by the companion of the process")


def log_processes(run: RunData) -> list[LogProcess]:
    """Return the processes of a run: of the last attempt the one that failed first, then the others by index.

    Args:
        run: The run.
    """
    root, companions = run.journal.root, companions_of(run)
    found: dict[tuple[str, int], ProcessView] = {}
    for attempt in reversed(run.view.attempts):
        for process in sorted(attempt.processes, key=lambda process: not process.is_first_cause):
            found.setdefault((process.host, process.pid), process)
    of_host: dict[str, set[int | None]] = {}
    for process in found.values():
        of_host.setdefault(process.host, set()).add(process.process_index)
    last = run.view.attempts[-1].number if run.view.attempts else 0
    events: dict[tuple[str, int], list[CompanionEvent]] = {}
    for event in companions.events:
        events.setdefault((event.host, event.pid), []).append(event)
    consoles: dict[tuple[str, int], list[ConsoleText]] = {}
    for key, lines in companions.lines.items():
        consoles.setdefault(key[:2], []).append(_console(key, lines))
    files: dict[str, list[ConsoleFile]] = {}
    for file in console_files(root):  # Once: a folder that hosts share may have thousands.
        files.setdefault(file.host, []).append(file)
    result, used = [], dict[str, int]()
    for (host, pid), process in found.items():
        name = host if len(of_host[host]) == 1 else f"{host}/{process.process_index}"
        if process.attempt != last:
            name = f"{name} (attempt {process.attempt})"
        used[name] = used.get(name, 0) + 1
        if used[name] > 1:
            name = f"{name}:{pid}"
        console = consoles.get((host, pid), ())
        result.append(LogProcess(process, name, console, events.get((host, pid), ()), root, files.get(host, ())))
    return result


def _console(key: tuple[str, int, str], lines: LastLines) -> ConsoleText:
    ref = Ref(lines.insert_id, COMPANION_LOG_ID, lines.time_ns, key[0])
    return ConsoleText(
        lines.time_ns, lines.stream, lines.occasion, lines.text, ref, times=lines.times, path=lines.path,
        is_of_python=lines.is_of_python,
    )  # fmt: skip


def printable_lines(texts: Iterable[tuple[str, Text]]) -> list[Line]:
    """Return the lines of streams, without secrets and safe to show.

    Args:
        texts: The name of the process, and the text.
    """
    return [line for name, text in texts for line in lines_of(redact_text(text.text), name, text.stream, text.times)]


class Part(NamedTuple):
    """A part of a text, of whole lines; a printed PEM key, which is recognized by its first line, is in one part.

    Attributes:
        text: The lines, without secrets and safe to show.
        start: The position of its first byte.
        end: The position after its last byte.
        size: The size of the whole text, in bytes.
    """

    text: str
    start: int
    end: int
    size: int


def part_of(text: str, start: int, end: int) -> Part:
    """Return a range of bytes of a text, from the start of a line to the end of one.

    Args:
        text: The text.
        start: The first byte; negative counts from the end.
        end: The byte after the last one.
    """
    data = text.encode("utf-8", "surrogateescape")
    size = len(data)
    first = max(0, size + start) if start < 0 else min(start, size)
    last = min(max(end, first), size)
    if 0 < first < size and data[first - 1 : first] != b"\n":
        newline = data.find(b"\n", first) if start < 0 else data.rfind(b"\n", 0, first)
        first = newline + 1 if newline >= 0 else (first if start < 0 else 0)
    first = _start_of_key(data, first)
    if 0 < last < size and data[last - 1 : last] != b"\n":
        newline = data.find(b"\n", last)
        last = newline + 1 if newline >= 0 else size
    last = max(first, _end_of_key(data, last))
    lines = redact_text(data[first:last].decode("utf-8", "replace")).split("\n")
    return Part("\n".join(map(safe, lines)), first, last, size)


def _start_of_key(data: bytes, position: int) -> int:
    """Return the start of the key that a position is in; the position if it is in none."""
    least = max(0, position - _LONGEST_KEY_BYTES)
    start = data.rfind(_KEY_START, least, position)
    return start if start > data.rfind(_KEY_END, least, position) else position


def _end_of_key(data: bytes, position: int) -> int:
    """Return the end of the last line of the key that a position is in; the position if it is in none."""
    if _start_of_key(data, position) == position:
        return position
    end = data.find(_KEY_END, position, position + _LONGEST_KEY_BYTES)
    newline = data.find(b"\n", end) if end >= 0 else -1
    return newline + 1 if newline >= 0 else position if end < 0 else len(data)
