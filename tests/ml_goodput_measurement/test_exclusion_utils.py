"""Exclusions are sorted, merged and in seconds since 1970, and one that is none costs a warning and nothing else."""

from __future__ import annotations

import datetime
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement.exclusion_utils import get_exclusion_overlap, normalize_intervals

UTC = datetime.timezone.utc
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def pairs(*bounds: tuple[float, float]) -> list[tuple[datetime.datetime, datetime.datetime]]:
    return [(at(start), at(end)) for start, end in bounds]


def in_seconds(*bounds: tuple[float, float]) -> list[tuple[float, float]]:
    return [(NOON.timestamp() + start, NOON.timestamp() + end) for start, end in bounds]


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given_pairs", "merged"),
    [
        ([], []),
        ([(0, 10)], [(0, 10)]),
        ([(20, 30), (0, 10)], [(0, 10), (20, 30)]),
        ([(0, 10), (10, 20)], [(0, 20)]),
        ([(0, 10), (5, 20)], [(0, 20)]),
        ([(0, 30), (5, 20)], [(0, 30)]),
        ([(0, 10), (0, 10)], [(0, 10)]),
        ([(0, 10), (11, 20), (9, 12)], [(0, 20)]),
    ],
)
def test_intervals_are_sorted_and_merged(given_pairs: list[Any], merged: list[Any]) -> None:
    assert normalize_intervals(pairs(*given_pairs)) == in_seconds(*merged)
    assert normalize_intervals(iter(pairs(*given_pairs))) == in_seconds(*merged)


@pytest.mark.usefixtures("local_time")
def test_every_zone_is_understood_and_no_zone_is_local_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    found = normalize_intervals([(at(0).astimezone(tokyo), at(60).astimezone(tokyo))])
    assert found == in_seconds((0, 60))
    assert not caplog.records
    naive = datetime.datetime(2026, 1, 1, 7), datetime.datetime(2026, 1, 1, 8)
    found = normalize_intervals([naive])
    assert found == in_seconds((0, 3600))
    assert get_exclusion_overlap(*naive, pairs((60, 90))) == 30.0
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        7,
        "ab",
        (),
        (at(0),),
        (at(0), at(1), at(2)),
        (at(0), None),
        (1.0, 2.0),
        ("2026-01-01", "2026-01-02"),
        (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
        (at(5), at(5)),
        (at(6), at(5)),
    ],
)
def test_an_invalid_interval_is_named_once_and_skipped(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert normalize_intervals([wrong, *pairs((0, 10))]) == in_seconds((0, 10))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is skipped" in caplog.text


@pytest.mark.parametrize(
    ("start", "end", "exclusions", "seconds"),
    [
        (0, 100, [], 0),
        (0, 100, [(10, 20), (50, 80)], 40),
        (0, 100, [(-10, 10), (90, 200)], 20),
        (0, 100, [(10, 40), (20, 50)], 40),  # Once, although both have it.
        (0, 100, [(-10, 0), (100, 110)], 0),
        (0, 100, [(-10, 110)], 100),
        (100, 0, [(-10, 110)], 0),
        (0.25, 0.75, [(0, 0.5)], 0.25),
    ],
)
def test_the_overlap_is_what_lies_in_any_exclusion(start: float, end: float, exclusions: Any, seconds: float) -> None:
    assert get_exclusion_overlap(at(start), at(end), pairs(*exclusions)) == seconds
    zero = NOON.timestamp()
    assert get_exclusion_overlap(zero + start, zero + end, in_seconds(*exclusions)) == seconds


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_any_intervals_cover_the_seconds_that_they_cover(
    starts: list[tuple[int, int]], first: int, length: int
) -> None:
    bounds = [(start, start + size) for start, size in starts]
    covered = {second for start, end in bounds for second in range(start, end)}
    merged = normalize_intervals(pairs(*bounds))
    assert all(one[1] < other[0] for one, other in itertools.pairwise(merged))
    assert sum(end - start for start, end in merged) == len(covered)
    overlap = get_exclusion_overlap(at(first), at(first + length), pairs(*bounds))
    assert overlap == len(covered & set(range(first, first + length)))
