"""A picture of a job, or of some processes, as a table, JSON, or folded stacks."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cloud_tpu_diagnostics.activity import activity_of, plural
from cloud_tpu_diagnostics.grouping import JobPicture, ProcessDump, ThreadGroup, group_threads, main_thread, say
from cloud_tpu_diagnostics.traces import Frame

__all__ = ["format_collapsed", "format_json", "format_table"]


def format_table(picture: JobPicture, *, all_threads: bool = False) -> str:
    """For people: the sentence, then each group's processes and exact stack.

    Args:
        picture: What to show.
        all_threads: Also the other threads of one process of each group.
    """
    blocks = [_title(picture)]
    for group in picture.groups:
        blocks.append("\n".join([_who(group.processes), *_stack_lines(group.frames)]))
        if all_threads:
            blocks += _thread_blocks(group.processes[0], len(group.processes) > 1)
    for dump in picture.ended:
        blocks.append("\n".join(_ended_lines(dump)))
        if all_threads and not dump.exception:
            blocks += _thread_blocks(dump, False)
    for dump, seconds in picture.silent:
        frames = group_threads(dump.threads)[0].frames if dump.threads else ()
        blocks.append("\n".join([f"{dump.process}, {seconds:.0f} s ago", *_stack_lines(frames)]))
    return "\n\n".join(blocks) + "\n"


def format_json(picture: JobPicture) -> str:
    """For programs: one object, with every process and every stack once."""
    encoded = {
        "summary": say(picture),
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
    return json.dumps(encoded, indent=1) + "\n"


def format_collapsed(dumps: Iterable[ProcessDump]) -> str:
    """Folded stacks, as flamegraph.pl and speedscope read them: outermost frame first, and how many threads have it."""
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
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(newest_ns / 1e9)) if newest_ns else ""
    return f"{say(picture)}\n(as of {when})" if when else say(picture)


def _who(dumps: Sequence[ProcessDump]) -> str:
    shown = ", ".join(dump.process for dump in dumps[:8]) + (f" and {len(dumps) - 8} more" if len(dumps) > 8 else "")
    return f"{len(dumps)} processes: {shown}" if len(dumps) > 1 else shown


def _ended_lines(dump: ProcessDump) -> list[str]:
    """Return how a process ended, and its last stack; of an exception, also what it is linked to."""
    if dump.exception:
        lines = [f"{dump.process}: {dump.headline}", *([dump.ended] if dump.ended else [])]
        for thread in dump.threads:
            lines += ([f"  {thread.thread}"] if thread.thread else []) + _stack_lines(thread.frames)
        return lines
    crashed = next((thread for thread in dump.threads if thread.is_current), None) if dump.has_crashed else None
    last = crashed or main_thread(dump.threads)
    how = dump.headline if dump.has_crashed else dump.ended
    return [f"{dump.process}: {how}", *_stack_lines(last.frames if last else ())]


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
        head = f"{_threads(group)}: {activity.text if group.threads == 1 else plural(activity.text)}"
        if is_one_of_several:
            head = f"in {dump.process}, {head}"
        blocks.append("\n".join([head] if activity.is_idle else [head, *_stack_lines(group.frames)]))
    return blocks


def _threads(group: ThreadGroup) -> str:
    return "1 thread" if group.threads == 1 else f"{group.threads} threads"


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
        "time": _utc(dump.time_ns),
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


def _utc(time_ns: int) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns / 1e9)) if time_ns else None


def _folded(frame: Frame) -> str:
    text = _frame_text(frame) if frame.line or not frame.file else f"{frame.function} ({frame.file})"
    return text.replace(";", ":").replace("\n", " ")
