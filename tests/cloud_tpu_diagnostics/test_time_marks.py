"""The time by which each line of a stream was printed, in bounded memory."""

from __future__ import annotations

from itertools import accumulate

from cloud_tpu_diagnostics._console.marks import MARK_NS, TimeMarks, times_of_lines
from hypothesis import given
from hypothesis import strategies as st

_SECOND_NS = 10**9


def test_a_mark_has_the_time_of_the_last_write_before_a_pause() -> None:
    marks = TimeMarks()
    for position, seconds in ((10, 0.0), (20, 0.1), (30, 600.0), (30, 601.0)):
        marks.add(position, round(seconds * _SECOND_NS))
    assert list(marks) == [(10, 0), (20, _SECOND_NS // 10), (30, 600 * _SECOND_NS)]


def test_a_stream_that_is_truncated_starts_again() -> None:
    marks = TimeMarks()
    marks.add(100, 0)
    marks.add(5, _SECOND_NS)
    assert list(marks) == [(5, _SECOND_NS)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 2 * MARK_NS)), max_size=3000))
def test_marks_are_bounded_in_order_and_never_too_early(steps: list[tuple[int, int]]) -> None:
    marks = TimeMarks()
    positions = list(accumulate(size for size, _ in steps))
    times = list(accumulate(pause for _, pause in steps))
    for position, time_ns in zip(positions, times, strict=True):
        marks.add(position, time_ns)
    kept = list(marks)
    assert len(kept) <= 512
    assert kept == sorted(kept)
    printed = dict(reversed(list(zip(positions, times, strict=True))))
    assert all(time_ns >= printed[position] for position, time_ns in kept)
    assert not kept or kept[-1][0] == positions[-1]


def test_lines_have_the_time_of_the_first_mark_behind_them() -> None:
    data = b"one\ntwo\nthree\nfour"
    assert times_of_lines(data, 100, [(90, 1), (104, 2), (110, 3), (118, 4)]) == [[1, 2], [2, 3], [4, 4]]
    assert times_of_lines(data, 0, []) == []
    assert times_of_lines(b"", 0, [(0, 1), (5, 2)]) == []
