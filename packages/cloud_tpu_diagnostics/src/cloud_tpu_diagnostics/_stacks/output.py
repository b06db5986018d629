"""A picture of a job, or of some processes, as text, as data for programs, or as folded stacks. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.texts import format_clock, format_count, format_duration

from cloud_tpu_diagnostics._dumps.grouping import (
    JobPicture,
    ProcessDump,
    activity_of,
    describe,
    group_threads,
    main_thread,
    plural,
)
from cloud_tpu_diagnostics._dumps.parser import Frame

__all__ = ["PROCESS_FIELDS", "as_dict", "format_collapsed", "format_text", "processes"]

PROCESS_FIELDS = (
    *("process", "host", "process_index", "pid", "step", "phase", "time", "activity", "headline", "ended"),
    "silent_seconds",
)
"""The columns of CSV."""
_SHOWN = 8


def format_text(picture: JobPicture, *, all_threads: bool = False) -> str:
    """Format a sentence about the job, then the processes and the exact stack of each group.

    Args:
        picture: The picture.
        all_threads: True to add the other threads of one process of each group.
    """
    blocks = [_title(picture)]
    for group in picture.groups:
        blocks.append("\n".join([_names(group.processes), *_stack_lines(group.frames)]))
        if all_threads:
            blocks += _thread_blocks(group.processes[0], len(group.processes) > 1)
    for dump in picture.ended:
        lines = _ended_lines(dump)
        if lines != [describe(picture)]:  # Of one process that ended well, the title has all.
            blocks.append("\n".join(lines))
        if all_threads and not dump.exception:
            blocks += _thread_blocks(dump, False)
    for dump, seconds in picture.silent:
        frames = group_threads(dump.threads)[0].frames if dump.threads else ()
        blocks.append("\n".join([f"{dump.process}, {format_duration(round(seconds))} ago", *_stack_lines(frames)]))
    return "\n\n".join(blocks)


def as_dict(picture: JobPicture) -> dict[str, Any]:
    """Return one object in the types of JSON, with every process and every stack once."""
    return {
        "summary": describe(picture),
        "processes": picture.processes,
        "groups": [
            {
                "frames": _frames_json(group.frames),
                "activity": activity_of(group.frames).text,
                "steps": list(group.steps),
                "processes": [_process_json(dump) for dump in group.processes],
            }
            for group in picture.groups
        ],
        "ended": [_process_json(dump) for dump in picture.ended],
        "silent": [{**_process_json(dump), "silent_seconds": seconds} for dump, seconds in picture.silent],
        "missing": list(picture.missing),
    }


def processes(picture: JobPicture) -> list[dict[str, Any]]:
    """Return a row for each process, with the activity of its main thread."""
    silent = {id(dump): seconds for dump, seconds in picture.silent}
    grouped = [dump for group in picture.groups for dump in group.processes]
    rows = []
    for dump in (*grouped, *picture.ended, *(dump for dump, _ in picture.silent)):
        main = main_thread(dump.threads)
        found = {**_process_json(dump), "activity": activity_of(main.frames).text if main else None}
        found["silent_seconds"] = silent.get(id(dump))
        rows.append({field: found.get(field) for field in PROCESS_FIELDS})
    return rows


def format_collapsed(dumps: Iterable[ProcessDump]) -> str:
    """Format folded stacks for flamegraph.pl and speedscope: outermost frame first, and the number of threads."""
    counts: Counter[tuple[Frame, ...]] = Counter()
    for dump in dumps:
        counts.update(thread.frames for thread in dump.threads if thread.frames)
    lines: Counter[str] = Counter()
    for frames, count in counts.items():
        lines[";".join(_folded(frame) for frame in reversed(frames))] += count
    return "".join(f"{folded} {count}\n" for folded, count in sorted(lines.items()))


def _title(picture: JobPicture) -> str:
    times = [dump.time_ns for group in picture.groups for dump in group.processes] + [
        dump.time_ns for dump in (*picture.ended, *(dump for dump, _ in picture.silent))
    ]
    newest_ns = max(times, default=0)
    return f"{describe(picture)}\n(as of {format_clock(newest_ns)})" if newest_ns else describe(picture)


def _names(dumps: Sequence[ProcessDump]) -> str:
    more = f" and {len(dumps) - _SHOWN} more" if len(dumps) > _SHOWN else ""
    shown = ", ".join(dump.process for dump in dumps[:_SHOWN]) + more
    return f"{len(dumps)} processes: {shown}" if len(dumps) > 1 else shown


def _ended_lines(dump: ProcessDump) -> list[str]:
    """Return the outcome of a process, and its last stack; of an exception, also those linked to it."""
    if dump.exception:
        lines = [f"{dump.process}: {dump.headline}", *([dump.ended] if dump.ended else [])]
        for thread in dump.threads:
            lines += ([f"  {thread.thread}"] if thread.thread else []) + _stack_lines(thread.frames)
        return lines
    crashed = next((thread for thread in dump.threads if thread.is_current), None) if dump.has_crashed else None
    last = crashed or main_thread(dump.threads)
    how = dump.headline if dump.has_crashed else dump.ended
    return [f"{dump.process}: {how}", *(_stack_lines(last.frames if last else ()) if dump.threads else ())]


def _stack_lines(frames: Sequence[Frame]) -> list[str]:
    return [f"    {_frame_text(frame)}" for frame in frames] or ["    (no Python frame known)"]


def _frame_text(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})" if frame.file else frame.function


def _thread_blocks(dump: ProcessDump, is_one_of_several: bool) -> list[str]:
    blocks = []
    for group in group_threads(dump.threads):
        if group.has_main and group.threads == 1:
            continue
        activity = activity_of(group.frames)
        head = (
            f"{format_count(group.threads, 'thread')}: {activity.text if group.threads == 1 else plural(activity.text)}"
        )
        if is_one_of_several:
            head = f"in {dump.process}, {head}"
        blocks.append("\n".join([head] if activity.is_idle else [head, *_stack_lines(group.frames)]))
    return blocks


def _frames_json(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [frame._asdict() for frame in frames]


def _process_json(dump: ProcessDump) -> dict[str, Any]:
    known = {
        "process": dump.process,
        "host": dump.host,
        "process_index": dump.process_index,
        "pid": dump.pid or None,
        "step": dump.step,
        "phase": dump.phase,
        "time": format_timestamp(dump.time_ns)[:19] + "Z" if dump.time_ns else None,
        "headline": dump.headline or None,
        "ended": dump.ended or None,
    }
    threads = [
        {
            "threads": group.threads,
            "main": group.has_main,
            "activity": activity_of(group.frames).text,
            "frames": _frames_json(group.frames),
        }
        for group in group_threads(dump.threads)
    ]
    return {**{name: value for name, value in known.items() if value is not None}, "thread_groups": threads}


def _folded(frame: Frame) -> str:
    text = _frame_text(frame) if frame.line or not frame.file else f"{frame.function} ({frame.file})"
    return text.replace(";", ":").replace("\n", " ")
