"""Pairs of marks: in any order of arrival, they equal the pairs of the sorted marks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger.intervals import Interval, Marks

Mark = tuple[int, bool]
"""Time, and whether it is an end."""

marks_in_any_order = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=25)


def pairs_of(marks: list[Mark]) -> list[Interval]:
    """The rule, slowly: an end closes the latest start that stands directly before it."""
    pairs = []
    opened = None
    for time, is_end in sorted(set(marks), key=lambda mark: (mark[0], not mark[1])):
        if not is_end:
            opened = time
        elif opened is not None:
            pairs.append((opened, time))
            opened = None
    return pairs


def marks_of(marks: list[Mark]) -> Marks:
    made = Marks()
    for time, is_end in marks:
        made.add(time, is_end=is_end)
    return made


def total(pairs: list[Interval]) -> int:
    return sum(end - start for start, end in pairs)


@settings(max_examples=500)
@given(marks_in_any_order)
def test_pairs_and_their_sum_do_not_depend_on_order_or_repetition(marks: list[Mark]) -> None:
    made = marks_of(marks)
    assert list(made.pairs()) == pairs_of(marks)
    assert made.total_ns == total(pairs_of(marks))


@settings(max_examples=500)
@given(marks_in_any_order)
def test_adding_returns_the_added_and_the_removed_pairs(marks: list[Mark]) -> None:
    made, known = Marks(), set[Interval]()
    for time, is_end in marks:
        broken, new = made.add(time, is_end=is_end)
        known -= {broken} if broken else set()
        known |= set(new)
        assert known == set(made.pairs())


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40), st.data())
def test_many_at_once_are_the_same_as_one_by_one(marks: list[Mark], data: st.DataObject) -> None:
    codes = sorted({2 * time + (not is_end) for time, is_end in marks})
    cut = data.draw(st.integers(0, len(codes)))
    made = Marks()
    for part in (codes[:cut], codes[cut:]):
        if part:
            made.extend(part)
    one_by_one = marks_of(marks)
    assert made.codes == one_by_one.codes
    assert made.total_ns == one_by_one.total_ns
    assert list(made.pairs()) == list(one_by_one.pairs())


@settings(max_examples=300)
@given(marks_in_any_order, st.integers(-1, 32), st.integers(-1, 32))
def test_the_neighbours_of_a_moment_are_found(marks: list[Mark], first: int, last: int) -> None:
    made = marks_of(marks)
    times = [time for time, _ in marks]
    assert made.next_after(first) == min((time for time in times if time > first), default=None)
    assert made.last_before(first) == max((time for time in times if time < first), default=None)
    inside = [pair for pair in pairs_of(marks) if first <= pair[0]]
    expected = inside[0] if inside and inside[0][1] <= last else None
    assert made.first_pair(first, last) == expected


def test_activities_back_to_back_pair_each_with_its_own() -> None:
    assert list(marks_of([(0, False), (5, True), (5, False), (9, True)]).pairs()) == [(0, 5), (5, 9)]
