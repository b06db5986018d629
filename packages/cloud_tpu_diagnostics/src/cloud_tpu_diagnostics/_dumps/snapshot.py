"""The threads of this process, grouped by equal stack while Python can run.

Under the GIL only pairs of code and instruction are copied. Line numbers are computed afterwards, once for each
different stack. The frames are released at once, since they hold the variables of the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.thread_frames import current_frames
from ml_diagnostics_common.worker import thread_names

from cloud_tpu_diagnostics._dumps.grouping import ThreadGroup, activity_of, plural
from cloud_tpu_diagnostics._dumps.parser import Frame

__all__ = ["Snapshot", "SnapshotHistory", "Unchanged", "describe", "take_snapshot"]

_DEEPEST: Final = 100
"""Frames of a thread; faulthandler's limit too."""
_NAMES_KEPT: Final = 3
_YIELD_SECONDS: Final = 1e-6
_MOST_BYTES: Final = 100_000
"""An entry of Cloud Logging has at most 256 KB, and its message is in it too."""

_Stack = tuple[list[CodeType], list[int]]


class Snapshot(NamedTuple):
    """The threads of a process at one time."""

    groups: tuple[ThreadGroup, ...]
    """One for each stack: the main thread's first, then by number of threads."""
    thread_count: int
    time_ns: int
    """Nanoseconds since the epoch."""

    def to_json(self, *, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
        """Return it as JSON: `time_ns`, `threads`, `groups`, and the number of groups that were left out.

        Args:
            most_bytes: About the largest size of the groups; the last ones, with the fewest threads, are left out.
        """
        groups: list[dict[str, Any]] = []
        space_left = most_bytes
        for group in self.groups:
            frames = list(map(str, group.frames))
            space_left -= sum(len(frame) + 4 for frame in frames) + sum(map(len, group.names)) + 80
            if space_left < 0:
                break
            groups.append(
                {"threads": group.threads, "main": group.has_main, "names": list(group.names), "frames": frames}
            )
        left_out = len(self.groups) - len(groups)
        encoded = {"time_ns": self.time_ns, "threads": self.thread_count, "groups": groups}
        return {**encoded, "left_out": left_out} if left_out else encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that `to_json` encoded; numbers may have become floats since.

        Raises:
            ValueError: It is not a snapshot.
        """
        try:
            groups = tuple(_group_from_json(group) for group in encoded["groups"])
            return cls(groups, int(encoded["threads"]), int(encoded.get("time_ns", 0)))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"invalid snapshot ({type(error).__name__}: {error})") from error


def take_snapshot(*, leave_out: Collection[int] = ()) -> Snapshot:
    """Take a snapshot of all threads except the caller's; of the main thread even if it is the caller.

    Args:
        leave_out: Identifiers of further threads to leave out: those of this package.
    """
    time_ns = time.time_ns()
    stacks = _copy_stacks()
    caller = threading.get_ident()
    main = threading.main_thread().ident
    # A copy in one step: `threading.enumerate` takes a lock, which a stuck thread may hold.
    threads: dict[int, threading.Thread] = dict(threading._active)  # type: ignore[attr-defined]
    names = {ident: thread.name for ident, thread in threads.items()} | thread_names()
    by_stack: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[_Stack, list[int]]] = {}
    for ident, stack in reversed(stacks.items()):  # Oldest first.
        if ident in leave_out or (ident == caller and ident != main):
            continue
        codes, instructions = stack
        if ident == caller:
            codes, instructions = codes[2:], instructions[2:]  # Without this function and the one that it called.
        # By identity: to hash a code object is to hash all that it is made of.
        key = (tuple(map(id, codes)), tuple(instructions))
        by_stack.setdefault(key, ((codes, instructions), []))[1].append(ident)
    groups = []
    known: dict[tuple[int, int], Frame] = {}
    for (codes, instructions), idents in by_stack.values():
        frames = tuple(_resolve(codes, instructions, known))
        idents.sort(key=lambda ident: ident != main)
        shown = tuple(names.get(ident, f"0x{ident:016x}") for ident in idents[:_NAMES_KEPT])
        groups.append(ThreadGroup(frames, len(idents), shown, idents[0] == main))
        # Other threads get the GIL between two groups; Python 3.10 takes it back at once after a sleep of 0.
        time.sleep(_YIELD_SECONDS)
    groups.sort(key=lambda group: (not group.has_main, -group.threads))
    return Snapshot(tuple(groups), sum(group.threads for group in groups), time_ns)


def _copy_stacks() -> dict[int, _Stack]:
    stacks: dict[int, _Stack] = {}
    for ident, frame in current_frames().items():
        codes: list[CodeType] = []
        instructions: list[int] = []
        inner = frame
        while inner is not None and len(codes) < _DEEPEST + 2:
            codes.append(inner.f_code)
            instructions.append(inner.f_lasti)
            inner = inner.f_back  # type: ignore[assignment]
        stacks[ident] = (codes, instructions)
    return stacks


def _resolve(
    codes: Sequence[CodeType], instructions: Sequence[int], known: dict[tuple[int, int], Frame]
) -> Iterator[Frame]:
    for code, instruction in zip(codes, instructions, strict=True):
        key = (id(code), instruction)
        if key not in known:
            known[key] = Frame(code.co_filename, _line(code, instruction), code.co_name)
        yield known[key]


def _line(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction; the function's first if the instruction has none."""
    for first, end, line in code.co_lines():
        if first <= instruction < end:
            return line or code.co_firstlineno
    return code.co_firstlineno


class Unchanged(NamedTuple):
    """The snapshots and the time since a stack changed last."""

    snapshots: int
    """The number of consecutive snapshots before this one with the same stack; 0 for a new one."""
    seconds: float
    """The time since the first of them."""


class SnapshotHistory:
    """The stacks of the last snapshot, and the time since which each has been there."""

    def __init__(self) -> None:
        self._since: dict[tuple[bool, tuple[Frame, ...]], tuple[int, int]] = {}

    def seen(self, snapshot: Snapshot, now_ns: int | None = None) -> tuple[Unchanged, ...]:
        """Add a snapshot.

        Args:
            snapshot: The next one.
            now_ns: When it was taken, by the monotonic clock; None is now.

        Returns:
            The time since the last change of each of its groups.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        before, self._since = self._since, {}
        unchanged = []
        for group in snapshot.groups:
            key = (group.has_main, group.frames)
            first_ns, snapshots = before.get(key, (now_ns, -1))
            self._since[key] = (first_ns, snapshots + 1)
            unchanged.append(Unchanged(snapshots + 1, max(0, now_ns - first_ns) / 1e9))
        return tuple(unchanged)


def describe(snapshot: Snapshot, unchanged: Sequence[Unchanged] = ()) -> str:
    """Return a snapshot as text: a line for each group, and the stacks of those that are not idle.

    Args:
        snapshot: The snapshot.
        unchanged: The result of `SnapshotHistory.seen` for it, if known.
    """
    many = len(snapshot.groups)
    lines = [f"{_count(snapshot.thread_count, 'thread')} in {_count(many, 'group')} of equal stacks"]
    for number, group in enumerate(snapshot.groups):
        activity = activity_of(group.frames)
        subject = "main thread" if group.has_main and group.threads == 1 else _count(group.threads, "thread")
        if group.has_main and group.threads > 1:
            subject += ", the main thread among them,"
        named = "" if group.has_main and group.threads == 1 else f" ({_names(group)})"
        still = _still(unchanged[number]) if number < len(unchanged) else ""
        text = activity.text if group.threads == 1 else plural(activity.text)
        lines.append(f"{subject}{named}: {text}{still}")
        if not activity.is_idle or group.has_main:
            lines += [f"    {frame}" for frame in group.frames]
    return "\n".join(lines)


def _still(unchanged: Unchanged) -> str:
    if not unchanged.snapshots:
        return ""
    from ml_diagnostics_common.texts import (
        format_duration,
    )  # Only the companion describes; the job only takes snapshots.

    return f"; the same for {_count(unchanged.snapshots, 'snapshot')}, {format_duration(unchanged.seconds)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(group: ThreadGroup) -> str:
    more = group.threads - len(group.names)
    return ", ".join(group.names) + (f" and {more} more" if more > 0 else "")


def _group_from_json(encoded: Mapping[str, Any]) -> ThreadGroup:
    return ThreadGroup(
        tuple(Frame.from_text(text) for text in encoded["frames"]),
        int(encoded["threads"]),
        tuple(str(name) for name in encoded.get("names", ())),
        bool(encoded.get("main", False)),
    )
