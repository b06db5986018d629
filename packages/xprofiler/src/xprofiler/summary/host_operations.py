"""XLA operations on the CPU, read from events, since XProf's tables have only those of accelerators. Pure functions.

XLA's CPU client marks each operation that a thread runs with the statistic `hlo_op`. An operation is a span of time;
spans nest, and are joined and overlaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xprofiler.summary.xspace import Plane

__all__ = [
    "HostOperations",
    "ProfileWindow",
    "Span",
    "add_operations",
    "covered_ns",
    "joined",
    "merged",
    "operation_spans",
    "overlaid",
    "profile_window",
    "self_times",
]

_Label = TypeVar("_Label")
Span = tuple[int, int, str]
"""A span: start and end in nanoseconds, and a name."""
HOST_PLANE = "/host:CPU"


def self_times(spans: Iterable[Span]) -> dict[str, int]:
    """Return the time of one thread's spans by name, without nested spans, in nanoseconds."""
    times: dict[str, int] = {}
    around: list[Span] = []
    for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1][1] <= start:
            around.pop()
        times[name] = times.get(name, 0) + end - start
        if around:
            outer = around[-1]
            times[outer[2]] -= min(end, outer[1]) - start
        around.append((start, end, name))
    return times


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of spans as disjoint intervals, in order."""
    intervals: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if intervals and start <= intervals[-1][1]:
            if end > intervals[-1][1]:
                intervals[-1] = (intervals[-1][0], end)
        elif end > start:
            intervals.append((start, end))
    return intervals


def covered_ns(spans: Sequence[Span]) -> int:
    """Return the length of the union of spans, in nanoseconds."""
    return sum(end - start for start, end in merged((start, end) for start, end, _ in spans))


def joined(segments: Iterable[tuple[int, int, _Label]]) -> Iterator[tuple[int, int, _Label]]:
    """Join adjacent segments with the same label."""
    since, until, label = 0, 0, None
    for start, end, own in segments:
        if own == label and start == until:
            until = end
            continue
        if label is not None:
            yield since, until, label
        since, until, label = start, end, own
    if label is not None:
        yield since, until, label


def overlaid(
    segments: Iterable[tuple[int, int, _Label]],
    intervals: Sequence[tuple[int, int]],
    label: _Label,
    replaces: Callable[[_Label], bool] = lambda label: True,
) -> Iterator[tuple[int, int, _Label]]:
    """Yield labelled segments, with another label inside intervals.

    Args:
        segments: Disjoint segments, in order.
        intervals: Disjoint intervals, in order.
        label: The label inside the intervals.
        replaces: Return True for the labels that it replaces.
    """
    index = 0
    for start, end, own in segments:
        while index < len(intervals) and intervals[index][1] <= start:
            index += 1
        at, following = start, index if replaces(own) else len(intervals)
        while following < len(intervals) and intervals[following][0] < end:
            inner_start, inner_end = max(intervals[following][0], at), min(intervals[following][1], end)
            if inner_start > at:
                yield at, inner_start, own
            yield inner_start, inner_end, label
            at = inner_end
            following += 1
        if end > at:
            yield at, end, own


@dataclass
class HostOperations:
    """The operations that threads of hosts ran.

    Attributes:
        self_ns: The time of each operation by name, without the operations that it called.
        runs: The number of runs by name.
        busy_ns: The time in which at least one thread of a host ran an operation, summed over hosts.
        profiled_ns: The profiled time, summed over hosts.
    """

    self_ns: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    busy_ns: int = 0
    profiled_ns: int = 0


@dataclass(frozen=True)
class ProfileWindow:
    """The time in which a host was profiled, in nanoseconds since the epoch; 0 if not recorded."""

    start_ns: int = 0
    end_ns: int = 0


def profile_window(planes: Sequence[Plane]) -> ProfileWindow:
    """Return the profiled time of a host."""
    for plane in planes:
        if plane.name == "Task Environment":
            return ProfileWindow(plane.number("profile_start_time"), plane.number("profile_stop_time"))
    return ProfileWindow()


def add_operations(planes: Sequence[Plane], into: HostOperations) -> None:
    """Add the operations of a host's threads to a total."""
    spans: list[Span] = []
    for plane in planes:
        for of_line in operation_spans(plane) if plane.name == HOST_PLANE else ():
            for _, _, name in of_line:
                into.runs[name] = into.runs.get(name, 0) + 1
            for name, self_ns in self_times(of_line).items():
                into.self_ns[name] = into.self_ns.get(name, 0) + self_ns
            spans += of_line
    if spans:
        window = profile_window(planes)
        into.busy_ns += covered_ns(spans)
        spanned_ns = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
        into.profiled_ns += max(window.end_ns - window.start_ns, spanned_ns)


def operation_spans(plane: Plane) -> list[list[Span]]:
    """Return the XLA operations in a host's plane, as a list for each thread."""
    marks = plane.stat_ids("hlo_op")
    return [spans for line in plane.lines if marks and (spans := _of_line(line, plane, marks))]


def _of_line(line: Any, plane: Plane, marks: frozenset[int]) -> list[Span]:
    spans, is_operation = [], dict[int, bool]()  # Decided once per name, since reading statistics is slow.
    for event in line.events:
        number, lasted_ns = event.metadata_id, event.duration_ps // 1000
        if number not in is_operation:
            is_operation[number] = any(stat.metadata_id in marks for stat in event.stats)
        if is_operation[number] and lasted_ns > 0:
            start_ns = line.timestamp_ns + event.offset_ps // 1000
            spans.append((start_ns, start_ns + lasted_ns, plane.event_names.get(number, "")))
    return spans
