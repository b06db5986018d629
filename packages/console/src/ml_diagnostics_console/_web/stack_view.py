"""The stacks of a run at a moment: groups of hosts that wait or are waited for, a map, and one tree of frames."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cloud_tpu_diagnostics.reading import (
    Frame,
    ProcessDump,
    StackPicture,
    activity_of,
    describe,
    group_threads,
    plural,
    short_path,
)

from ml_diagnostics_console._web.answers import Answer, BadQueryError, json_answer, text_answer
from ml_diagnostics_console._web.cloud_runs import cloud_run
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_companions import companions_of
from ml_diagnostics_console._web.sentences import marked, safe_line

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["NO_STACKS", "icicle", "stack_picture", "stacks"]

NO_STACKS: Final = (
    "This run has recorded no stacks. They are recorded when a job hangs or fails, inside of "
    "`with ml_diagnostics.instrument(NAME):` or `with diagnose(config):` of cloud_tpu_diagnostics. "
    "Of a job that runs now: `mldiagnostics ssh RUN HOST -- tpu-stacks dump PID`."
)
_SECOND_NS: Final = 1_000_000_000
_SLACK_NS: Final = 1_000_000
"""Times in URLs are of milliseconds; a moment that is given back is found all the same."""
_MOST_MOMENTS: Final = 200
_MOST_THREADS: Final = 40
_HEX: Final = "0x"
_STEP: Final = re.compile(r"(\bsteps? |\bto )(\d{4,15})\b", re.ASCII)


def stacks(run: RunData, query: Query) -> Answer:
    """Answer the stacks at the moment `at`, in seconds since 1970; by default the newest, or the last before an end."""
    at = query.number("at")
    if at is not None and not 0 <= at < 1e11:
        raise BadQueryError(f"at must be a time in seconds since 1970, got {at:g}")
    at_ns = None if at is None else round(at * _SECOND_NS) + _SLACK_NS
    answer = run.cached(("stacks", at_ns), lambda: _stacks(run, at_ns))
    if query.text("format") == "folded":  # As speedscope and flamegraph.pl read it.
        return text_answer(answer["folded"])
    return json_answer(answer)


def stack_picture(run: RunData, at_ns: int | None = None) -> StackPicture:
    """Return the stacks of a run.

    Args:
        run: The run.
        at_ns: The moment, in ns since 1970; None for the newest, or of an ended run the last before its end.
    """
    now_ns = time.time_ns() if run.is_live else None
    return companions_of(run).stacks.at(at_ns, now_ns=now_ns)


def _stacks(run: RunData, at_ns: int | None) -> dict[str, Any]:
    moments = companions_of(run).stacks.moments()
    if not moments:
        return _nothing(run)
    found = stack_picture(run, at_ns)
    picture = found.picture
    kinds = _kinds(found)
    text = _STEP.sub(lambda match: f"{match[1]}{int(match[2]):,}", safe_line(describe(picture)))
    start = "" if run.is_live or picture.ended else "When last seen: " if run.ended_s is None else "Before the end: "
    sentence = f"{start}{text}"
    named = [*(dump for group in picture.groups for dump in group.processes), *picture.ended]
    names = [*(dump.process for dump in named), *(dump.host for dump in named)]
    return {
        "at": found.time_ns / _SECOND_NS,
        "moments": [moment / _SECOND_NS for moment in moments[-_MOST_MOMENTS:]],
        "sentence": sentence,
        "parts": marked(sentence, names),
        "hosts": _hosts(run, found, kinds),
        "groups": [
            _group(found, index, kind, _seconds_since(run, found, index, at_ns)) for index, kind in enumerate(kinds)
        ],
        "icicle": icicle([(group.frames, len(group.processes)) for group in picture.groups], kinds),
        "ended": [_ended(dump) for dump in picture.ended],
        "silent": [{**_name(dump), "seconds": seconds} for dump, seconds in picture.silent],
        "missing": list(picture.missing),
        "folded": _folded(found),
        "help": None,
    }


def _nothing(run: RunData) -> dict[str, Any]:
    """Return the answer of a run without stacks."""
    in_cloud = cloud_run(run)
    return {
        "at": None,
        "moments": [],
        "sentence": "",
        "parts": [],
        "hosts": [
            {"name": process.host, "index": process.process_index, "group": None, "kind": "silent"}
            for process in run.view.processes
        ],
        "groups": [],
        "icicle": [],
        "ended": [],
        "silent": [],
        "missing": [],
        "folded": "",
        "help": NO_STACKS if in_cloud is None else in_cloud.no_stacks,
    }


def _kinds(found: StackPicture) -> list[str]:
    """Return the kind of each group: odd, most for the largest of the others, other."""
    kinds = ["odd" if index in found.odd else "other" for index in range(len(found.picture.groups))]
    if "other" in kinds:
        kinds[kinds.index("other")] = "most"
    return kinds


def _hosts(run: RunData, found: StackPicture, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return a square of the map for each process, by index; also for those of the run without any stack."""
    squares: dict[tuple[str, int], dict[str, Any]] = {}
    for number, group in enumerate(found.picture.groups):
        for dump in group.processes:
            squares[dump.host, dump.pid] = {**_name(dump), "group": number, "kind": kinds[number]}
    for dump in found.picture.ended:
        squares[dump.host, dump.pid] = {**_name(dump), "group": None, "kind": "ended"}
    for dump, _ in found.picture.silent:
        squares[dump.host, dump.pid] = {**_name(dump), "group": None, "kind": "silent"}
    known = {index for square in squares.values() if (index := square["index"]) is not None}
    at_ns = found.time_ns
    for attempt in run.view.attempts:
        for process in attempt.processes if (attempt.started_ns or 0) <= at_ns else ():
            key = process.host, process.pid
            if attempt is not _attempt_at(run, at_ns) or key in squares or process.process_index in known:
                continue
            squares[key] = {"name": process.host, "index": process.process_index, "group": None, "kind": "silent"}
    return sorted(squares.values(), key=lambda square: (square["index"] is None, square["index"] or 0, square["name"]))


def _attempt_at(run: RunData, at_ns: int) -> object:
    started = [attempt for attempt in run.view.attempts if (attempt.started_ns or 0) <= at_ns]
    return started[-1] if started else None


def _name(dump: ProcessDump) -> dict[str, Any]:
    return {"name": dump.process, "index": dump.process_index}


def _seconds_since(run: RunData, found: StackPicture, index: int, at_ns: int | None) -> float:
    """Return the time since the stacks were taken for a group that is still stuck: it has not moved since; else 0."""
    stuck = {hang.host for hang in run.hangs} if run.state == "stuck" and at_ns is None else set()
    is_stuck = all(dump.host in stuck for dump in found.picture.groups[index].processes)
    return max(0.0, run.now_s - found.time_ns / _SECOND_NS) if is_stuck else 0.0


def _group(found: StackPicture, index: int, kind: str, seconds_since: float) -> dict[str, Any]:
    group = found.picture.groups[index]
    many = len(group.processes)
    text = activity_of(group.frames).text if group.frames else "did not show their main thread"
    return {
        "kind": kind,
        "sentence": safe_line(plural(text) if many > 1 else text),
        "hosts": [dump.process for dump in group.processes],
        "frames": [_frame(frame) for frame in group.frames],
        "step": group.steps[0] if len(group.steps) == 1 else None,
        "steps": [group.steps[0], group.steps[-1]] if group.steps else None,
        "phase": safe_line(group.processes[0].phase or ""),
        "unchanged_seconds": found.unchanged_seconds[index] + seconds_since,
        "other_threads": _other_threads(group.processes[0]),
    }


def _frame(frame: Frame) -> dict[str, Any]:
    return {"function": safe_line(frame.function), "file": safe_line(short_path(frame.file)), "line": frame.line}


def _other_threads(dump: ProcessDump) -> list[dict[str, Any]]:
    """Return the threads of a process besides its main thread, by equal stack; those that only wait for work last."""
    groups = [group for group in group_threads(dump.threads) if not group.has_main]
    groups.sort(key=lambda group: activity_of(group.frames).is_idle)
    threads = []
    for group in groups[:_MOST_THREADS]:
        names = [safe_line(name) for name in group.names if name and not name.startswith(_HEX)]
        activity = activity_of(group.frames)
        threads.append(
            {
                "name": ", ".join(names) or f"{group.threads} thread{'s' if group.threads > 1 else ''}",
                "threads": group.threads,
                "text": safe_line(activity.text),
                "is_idle": activity.is_idle,
                "frames": [_frame(frame) for frame in group.frames],
            }
        )
    return threads


def _ended(dump: ProcessDump) -> dict[str, Any]:
    """Return a process that had ended, with the stack that its end left."""
    current = next((thread for thread in dump.threads if thread.is_current and thread.frames), None)
    text = dump.headline if dump.has_crashed else f"raised {dump.exception}" if dump.exception else dump.ended
    return {
        **_name(dump),
        "text": safe_line(text),
        "step": dump.step,
        "frames": [_frame(frame) for frame in current.frames] if current is not None else [],
    }


# --- One tree of all main threads ------------------------------------------------------------------------


def icicle(stacks: Sequence[tuple[Sequence[Frame], int]], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the boxes of a tree of frames, outermost first: a box is as wide as the number of its hosts.

    Args:
        stacks: The frames of each group, innermost first, and the number of its hosts.
        kinds: The kind of each group: most, other or odd.
    """
    boxes: list[dict[str, Any]] = []
    _grow(boxes, [(tuple(reversed(frames)), hosts, kind) for (frames, hosts), kind in zip(stacks, kinds, strict=True)])
    return boxes


def _grow(boxes: list[dict[str, Any]], groups: Sequence[tuple[tuple[Frame, ...], int, str]]) -> None:
    """Add the boxes of stacks with a common caller, without recursion: stacks may be deep."""
    waiting = [(0, 0, list(groups))]
    while waiting:
        depth, start, here = waiting.pop()
        branches: dict[Frame, list[tuple[tuple[Frame, ...], int, str]]] = {}
        for group in here:
            if len(group[0]) > depth:
                branches.setdefault(group[0][depth], []).append(group)
        for frame, same in branches.items():
            hosts = sum(group[1] for group in same)
            kinds = {group[2] for group in same}
            line = f":{frame.line}" if frame.line else ""
            boxes.append(
                {
                    "depth": depth,
                    "start": start,
                    "width": hosts,
                    "hosts": hosts,
                    "function": safe_line(frame.function),
                    "place": safe_line(f"{short_path(frame.file)}{line}"),
                    "kind": next(iter(kinds)) if len(kinds) == 1 else "most",
                    "is_leaf": any(len(group[0]) == depth + 1 for group in same),
                }
            )
            waiting.append((depth + 1, start, same))
            start += hosts
    boxes.sort(key=lambda box: (box["depth"], box["start"]))


def _folded(found: StackPicture) -> str:
    """Return the stacks in the folded form of flame graphs: `outer;inner 3`, a line for each group."""
    lines = []
    for group in found.picture.groups:
        frames = [
            f"{frame.function} ({short_path(frame.file)}:{frame.line})".replace(";", ",")
            for frame in reversed(group.frames)
        ]
        if frames:
            lines.append(f"{safe_line(';'.join(frames), 100_000)} {len(group.processes)}")
    return "\n".join(lines)
