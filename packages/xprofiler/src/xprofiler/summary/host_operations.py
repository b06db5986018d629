"""XLA operations on the CPU, read from events, since XProf's tables have only those of accelerators.

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

    begin_ns: int = 0
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
        spanned_ns = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        into.profiled_ns += max(window.end_ns - window.begin_ns, spanned_ns)


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
            begin_ns = line.timestamp_ns + event.offset_ps // 1000
            spans.append((begin_ns, begin_ns + lasted_ns, plane.event_names.get(number, "")))
    return spans
