"""Operations of a program that ran on the CPU: XProf's tables have only those of accelerators, its events have all.

XLA's CPU client marks each operation that a thread runs with the statistic `hlo_op`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["HostOperations", "ProfileWindow", "covered_ns", "read_host", "self_times"]

_Span = tuple[int, int, str]  # Begin and end in ns, and what it is.


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


def read_host(file: Path, into: HostOperations | None) -> ProfileWindow:
    """Reads one xplane.

    Args:
        file: Which.
        into: Where its operations are added; None wants only to know when it was profiled.
    """
    from xprof import profile_data

    window = ProfileWindow()
    spans: list[_Span] = []
    for plane in profile_data.ProfileData.from_file(str(file)).planes:
        if plane.name == "Task Environment":
            said = dict(plane.stats)
            window = ProfileWindow(int(said.get("profile_start_time", 0)), int(said.get("profile_stop_time", 0)))
        elif plane.name == "/host:CPU" and into is not None:
            for line in plane.lines:
                of_line = _operations(line)
                for _, _, name in of_line:
                    into.runs[name] = into.runs.get(name, 0) + 1
                for name, self_ns in self_times(of_line).items():
                    into.self_ns[name] = into.self_ns.get(name, 0) + self_ns
                spans += of_line
    if into is not None and spans:
        into.busy_ns += covered_ns(spans)
        spanned_ns = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        into.profiled_ns += max(window.end_ns - window.begin_ns, spanned_ns)
    return window


def _operations(line: Any) -> list[_Span]:
    if not line.name.startswith("tf_XLA"):
        return []
    spans, is_operation = [], dict[str, bool]()  # One look at a name is enough, and statistics are slow to read.
    for event in line.events:
        name, lasted_ns = event.name, event.duration_ns
        if name not in is_operation:
            is_operation[name] = any(key == "hlo_op" for key, _ in event.stats)
        if is_operation[name] and lasted_ns > 0:
            spans.append((int(event.start_ns), int(event.start_ns + lasted_ns), name))
    return spans


def self_times(spans: Iterable[_Span]) -> dict[str, int]:
    """Returns by name how long spans of one thread lasted, without the spans inside them, in nanoseconds."""
    times: dict[str, int] = {}
    around: list[_Span] = []
    for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1][1] <= begin:
            around.pop()
        times[name] = times.get(name, 0) + end - begin
        if around:
            outer = around[-1]
            times[outer[2]] -= min(end, outer[1]) - begin
        around.append((begin, end, name))
    return times


def covered_ns(spans: Sequence[_Span]) -> int:
    """Returns how long at least one span lasted, in nanoseconds."""
    covered, reached = 0, -1
    for begin, end, _ in sorted(spans):
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
