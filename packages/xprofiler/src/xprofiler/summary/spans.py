"""Spans of time on threads: nesting, unions and overlays. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["Span", "covered_ns", "joined", "merged", "overlaid", "self_times"]

_Label = TypeVar("_Label")
Span = tuple[int, int, str]
"""A span: start and end in nanoseconds, and a name."""


def self_times(spans: Iterable[Span]) -> dict[str, int]:
    """Return the time of one thread's spans by name, without nested spans, in nanoseconds."""
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
    """Return the union of spans as disjoint intervals, in order."""
    intervals: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if intervals and begin <= intervals[-1][1]:
            if end > intervals[-1][1]:
                intervals[-1] = (intervals[-1][0], end)
        elif end > begin:
            intervals.append((begin, end))
    return intervals


def covered_ns(spans: Sequence[Span]) -> int:
    """Return the length of the union of spans, in nanoseconds."""
    return sum(end - begin for begin, end in merged((begin, end) for begin, end, _ in spans))


def joined(segments: Iterable[tuple[int, int, _Label]]) -> Iterator[tuple[int, int, _Label]]:
    """Join adjacent segments with the same label."""
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
    """Yield labelled segments, with another label inside intervals.

    Args:
        segments: Disjoint segments, in order.
        intervals: Disjoint intervals, in order.
        label: The label inside the intervals.
        replaces: Return True for the labels that it replaces.
    """
    index = 0
    for begin, end, own in segments:
        while index < len(intervals) and intervals[index][1] <= begin:
            index += 1
        at, following = begin, index if replaces(own) else len(intervals)
        while following < len(intervals) and intervals[following][0] < end:
            inner_begin, inner_end = max(intervals[following][0], at), min(intervals[following][1], end)
            if inner_begin > at:
                yield at, inner_begin, own
            yield inner_begin, inner_end, label
            at = inner_end
            following += 1
        if end > at:
            yield at, end, own
