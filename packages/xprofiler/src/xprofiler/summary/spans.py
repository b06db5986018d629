"""Spans of time on threads: what ran inside what, and when anything ran. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["Span", "covered_ns", "joined", "merged", "overlaid", "self_times"]

_Label = TypeVar("_Label")
Span = tuple[int, int, str]
"""Begin and end in ns, and a name."""


def self_times(spans: Iterable[Span]) -> dict[str, int]:
    """Return by name how long spans of one thread lasted, without the spans inside them, in nanoseconds."""
    times: dict[str, int] = {}
    around: list[Span] = []
    for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1][1] <= begin:
            around.pop()
        times[name] = times.get(name, 0) + end - begin
        if around:
            outer = around[-1]
            times[outer[2]] -= min(end, outer[1]) - begin
        around.append((begin, end, name))
    return times


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the disjoint intervals, in order, in which at least one span ran."""
    intervals: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if intervals and begin <= intervals[-1][1]:
            if end > intervals[-1][1]:
                intervals[-1] = (intervals[-1][0], end)
        elif end > begin:
            intervals.append((begin, end))
    return intervals


def covered_ns(spans: Sequence[Span]) -> int:
    """Return how long at least one span lasted, in nanoseconds."""
    return sum(end - begin for begin, end in merged((begin, end) for begin, end, _ in spans))


def joined(segments: Iterable[tuple[int, int, _Label]]) -> Iterator[tuple[int, int, _Label]]:
    """Yield segments with those that follow one another under the same label made one."""
    since, until, label = 0, 0, None
    for begin, end, own in segments:
        if own == label and begin == until:
            until = end
            continue
        if label is not None:
            yield since, until, label
        since, until, label = begin, end, own
    if label is not None:
        yield since, until, label


def overlaid(
    segments: Iterable[tuple[int, int, _Label]],
    intervals: Sequence[tuple[int, int]],
    label: _Label,
    replaces: Callable[[_Label], bool] = lambda label: True,
) -> Iterator[tuple[int, int, _Label]]:
    """Yield labelled segments with the time inside intervals relabelled.

    Args:
        segments: Disjoint, in order.
        intervals: Disjoint, in order.
        label: Of the time inside them.
        replaces: Whether it replaces another one.
    """
    place = 0
    for begin, end, own in segments:
        while place < len(intervals) and intervals[place][1] <= begin:
            place += 1
        at, following = begin, place if replaces(own) else len(intervals)
        while following < len(intervals) and intervals[following][0] < end:
            inner_begin, inner_end = max(intervals[following][0], at), min(intervals[following][1], end)
            if inner_begin > at:
                yield at, inner_begin, own
            yield inner_begin, inner_end, label
            at = inner_end
            following += 1
        if end > at:
            yield at, end, own
