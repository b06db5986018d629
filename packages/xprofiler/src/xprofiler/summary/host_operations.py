"""Operations of a program that ran on the CPU: XProf's tables have only those of accelerators, its events have all.

XLA's CPU client marks each operation that a thread runs with the statistic `hlo_op`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xprofiler.summary.spans import Span, covered_ns, self_times
from xprofiler.summary.xspace import Plane

__all__ = ["HostOperations", "ProfileWindow", "add_operations", "operation_spans", "profile_window"]

HOST_PLANE = "/host:CPU"


@dataclass
class HostOperations:
    """What the threads of hosts did.

    Attributes:
        self_ns: The time of each operation without those that it called, by its name.
        runs: How often it ran.
        busy_ns: How long at least one thread of a host ran one, over all hosts.
        profiled_ns: How long the hosts were profiled, together.
    """

    self_ns: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    busy_ns: int = 0
    profiled_ns: int = 0


@dataclass(frozen=True)
class ProfileWindow:
    """When a host was profiled, in nanoseconds since the epoch; 0 if its profile does not say."""

    begin_ns: int = 0
    end_ns: int = 0


def profile_window(planes: Sequence[Plane]) -> ProfileWindow:
    """Return when the host of these planes was profiled."""
    for plane in planes:
        if plane.name == "Task Environment":
            return ProfileWindow(plane.number("profile_start_time"), plane.number("profile_stop_time"))
    return ProfileWindow()


def add_operations(planes: Sequence[Plane], into: HostOperations) -> None:
    """Add the operations that a host's threads ran."""
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
        spanned_ns = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        into.profiled_ns += max(window.end_ns - window.begin_ns, spanned_ns)


def operation_spans(plane: Plane) -> list[list[Span]]:
    """Return the XLA operations of a host's plane, a list for each thread."""
    marks = plane.stat_ids("hlo_op")
    return [spans for line in plane.lines if marks and (spans := _of_line(line, plane, marks))]


def _of_line(line: Any, plane: Plane, marks: frozenset[int]) -> list[Span]:
    spans, is_operation = [], dict[int, bool]()  # An event's name decides: statistics are slow to read.
    for event in line.events:
        number, lasted_ns = event.metadata_id, event.duration_ps // 1000
        if number not in is_operation:
            is_operation[number] = any(stat.metadata_id in marks for stat in event.stats)
        if is_operation[number] and lasted_ns > 0:
            begin_ns = line.timestamp_ns + event.offset_ps // 1000
            spans.append((begin_ns, begin_ns + lasted_ns, plane.event_names.get(number, "")))
    return spans
