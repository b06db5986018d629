"""The output of the processes of a run: the last bytes, pages of the whole, a search, and lines around a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ml_diagnostics_common.redaction import redact_text

from ml_diagnostics_console._logs.lines import Line, Shown, merged, window
from ml_diagnostics_console._logs.sources import Text
from ml_diagnostics_console._web.answers import Answer, BadQueryError, NotThereError, json_answer, text_answer
from ml_diagnostics_console._web.cloud_runs import cloud_run
from ml_diagnostics_console._web.log_sources import LogProcess, log_processes, part_of, printable_lines
from ml_diagnostics_console._web.queries import Query, quoted

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console._web.store import Store

__all__ = ["NO_LOG", "NO_TIMES", "level_of", "logs"]

NO_LOG: Final = (
    "No log is known of this run: its output goes to a terminal, a pipe or another machine. Start the job with "
    "`python -m cloud_tpu_diagnostics run -- python train.py`, which keeps its last megabytes."
)
NOT_SCHEDULED: Final = "No log yet: no process of this run has started."
NO_TIMES: Final = (
    "It is not known when the lines were printed. Started with `python -m cloud_tpu_diagnostics run -- COMMAND`, a job "
    "has the times of its lines."
)
_LARGEST_PAGE: Final = 1_000_000
_TAIL: Final = 4_096
_MOST_LINES: Final = 5_000
_MOST_BYTES: Final = 32 * 2**20
_LEAST_BYTES: Final = 64 * 2**10
_SECOND_NS: Final = 1_000_000_000
_WINDOW_SECONDS: Final = 30.0
_LEVELS: Final = ("all", "warning", "error")
_RANGE: Final = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)
_AROUND: Final = re.compile(r"step:(\d{1,15})", re.ASCII)
_ERROR: Final = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|Fatal Python error)\b|\bTraceback \(most recent call last\)"
    r"|^[EF]\d{4} \d\d:|^\w*(?:\.\w+)*(?:Error|Exception)\b(?:: |$)"
    r"|\b[Ee]rror: |\bmade no progress for\b|\bwas ended by SIG"
)
_WARNING: Final = re.compile(r"\bWARN(?:ING)?\b|^W\d{4} \d\d:|\w*Warning: |\bretry(?:ing)?\b", re.IGNORECASE)


def logs(run: RunData, query: Query, store: Store) -> Answer:
    """Answer the sources of a run's logs, a part of one of them, or the lines that a search finds."""
    with store.lock:
        processes = log_processes(run)
        step_ns, help_text = _time_of_step(run, query), _help(run, processes)
    chosen = _chosen(processes, query)
    if query.text("stream"):
        return _part(chosen, query, help_text)
    if query.text("q") or query.text("level") or query.text("around"):
        return json_answer(_lines(chosen, query, step_ns, help_text))
    return json_answer(_sources(processes, help_text))


def level_of(text: str) -> str:
    """Return the level of a line: error, warning, or info for all else."""
    if _ERROR.search(text):
        return "error"
    return "warning" if _WARNING.search(text) else "info"


def _sources(processes: Sequence[LogProcess], help_text: str) -> dict[str, Any]:
    sources = [
        {
            "host": process.name,
            "process_index": process.index,
            "attempt": process.attempt,
            "stream": text.stream,
            "size": len(text.text.encode("utf-8", "surrogateescape")),
            "origin": redact_text(text.origin),
        }
        for process in processes
        for text in process.texts()
    ]
    has_output = any(source["stream"] != "companion" for source in sources)
    return {"sources": sources, "help": None if has_output else help_text}


def _help(run: RunData, processes: Sequence[LogProcess]) -> str:
    """Return why there are no lines."""
    if not processes:
        return NOT_SCHEDULED
    in_cloud = cloud_run(run)
    return NO_LOG if in_cloud is None else in_cloud.no_log


def _chosen(processes: Sequence[LogProcess], query: Query) -> list[LogProcess]:
    host = query.text("host")
    chosen = [process for process in processes if host in ("", process.name, process.host)]
    if not chosen and host and processes:
        raise NotThereError(f"This run has no process on a host {quoted(host)}.")
    return chosen


def _part(processes: Sequence[LogProcess], query: Query, help_text: str) -> Answer:
    """Answer the last bytes of a stream, or a range of it."""
    stream = query.text("stream")
    texts = (text for process in processes for text in process.texts(is_dated=True))
    found = next((text for text in texts if text.stream == stream), None)
    if found is None:
        raise NotThereError(f"There is no {quoted(stream)} of this process. {help_text}")
    if asked := query.text("range"):
        match = _RANGE.fullmatch(asked)
        if match is None or int(match[1]) > int(match[2]):
            raise BadQueryError(f"range must be two positions such as 0-65536, got {quoted(asked)}")
        start, end = int(match[1]), min(int(match[2]), int(match[1]) + _LARGEST_PAGE)
    else:
        start, end = -min(query.natural("tail", _TAIL), _LARGEST_PAGE), 2**62
        if start == 0:
            start, end = 2**62, 2**62
    part = part_of(found.text, start, end)
    return text_answer(
        part.text,
        {"X-Log-Size": str(part.size), "X-Log-From": str(part.start), "X-Log-Next": str(part.end)},
    )


# --- Lines that a search finds ---------------------------------------------------------------------------


def _lines(processes: Sequence[LogProcess], query: Query, step_ns: int | None, help_text: str) -> dict[str, Any]:
    level = query.choice("level", _LEVELS)
    wanted = query.text("q").casefold()
    most_bytes = max(_LEAST_BYTES, _MOST_BYTES // max(1, 2 * len(processes)))
    texts: list[tuple[str, Text]] = []
    is_complete = True
    for process in processes:
        for text in process.texts(most_bytes):
            is_complete = is_complete and len(text.text) < most_bytes
            texts.append((process.name, text))
    lines = printable_lines(texts)
    reason = None if texts else help_text
    if query.text("around"):
        if step_ns is None:
            reason = f"The time of step {query.text('around').partition(':')[2]} is not known: no metric has it."
            lines = []
        else:
            half_ns = round(max(1.0, min(query.number("window", _WINDOW_SECONDS) or 0.0, 3600.0)) / 2 * _SECOND_NS)
            has_times = any(line.time_ns is not None for line in lines)
            lines = window(lines, step_ns - half_ns, step_ns + half_ns)
            reason = reason or (None if has_times else NO_TIMES)
    found = [
        line for line in lines if not wanted or wanted in line.text.casefold() or wanted in line.process.casefold()
    ]
    levels = Counter(level_of(line.text) for line in found)
    if level != "all":
        kept = ("error",) if level == "error" else ("warning", "error")
        found = [line for line in found if level_of(line.text) in kept]
    rows = _rows(found)
    return {
        "lines": rows[-_MOST_LINES:],
        "counts": {"all": sum(levels.values()), "warning": levels["warning"], "error": levels["error"]},
        "is_complete": is_complete and len(rows) <= _MOST_LINES,
        "at": None if step_ns is None else step_ns / _SECOND_NS,
        "help": reason,
    }


def _rows(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return lines of all processes in the order of time; equal ones that follow each other are one, with a count."""
    return [
        _row(list(same))
        for _, same in groupby(merged(lines), key=lambda line: (line.processes, line.stream, line.text))
    ]


def _row(same: Sequence[Shown]) -> dict[str, Any]:
    first = same[0]
    many = len(first.processes)
    return {
        "time": None if first.time_ns is None else first.time_ns / _SECOND_NS,
        "last_time": None if same[-1].time_ns is None else same[-1].time_ns / _SECOND_NS,
        "host": first.processes[0] if many == 1 else f"{first.processes[0]} and {many - 1} more",
        "stream": first.stream,
        "text": first.text,
        "level": level_of(first.text),
        "count": len(same),
    }


def _time_of_step(run: RunData, query: Query) -> int | None:
    """Return when a step was recorded last, in ns since 1970; None if no step is asked for, or it is not known."""
    asked = query.text("around")
    if not asked:
        return None
    match = _AROUND.fullmatch(asked)
    if match is None:
        raise BadQueryError(f"around must be a step such as step:4210, got {quoted(asked)}")
    step = int(match[1])
    columns = [column for name in run.columns.names() if (column := run.columns.first(name)) is not None]
    best: tuple[float, float] | None = None
    for column in columns:
        if column.has_steps and column.step.min() - 1 <= step <= column.step.max() + 1:
            distances = np.abs(column.step - step)
            index = len(distances) - 1 - int(np.argmin(distances[::-1]))  # The last time that it was done.
            best = min(best or (np.inf, 0.0), (float(distances[index]), float(column.time[index])))
    return None if best is None else round(best[1] * _SECOND_NS)
