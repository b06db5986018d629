"""Sums by day: they are cut at midnight, and sum to those of the attempts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger import PROCESS_GONE, Ledger
from ml_goodput_measurement._ledger.facts import Sizes
from ml_goodput_measurement.partition import Bucket, DaySum, Piece

from .histories import BASE, History, Payload
from .lives import ledger_of, lives

DAY_NS = 86_400 * 10**9
TO_MIDNIGHT = 6_400
"""Seconds from BASE to the next midnight in UTC."""


def slower(payloads: list[Payload], factor: int) -> list[Payload]:
    """The same life with every time and duration so many times as long."""
    return [{key: _slower(key, value, factor) for key, value in entry.items()} for entry in payloads]


def _slower(key: str, value: Any, factor: int) -> Any:
    if not isinstance(value, float):
        return value
    return value * factor if key.endswith("_secs") else BASE + (value - BASE) * factor


def days_of(pieces: list[Piece]) -> list[DaySum]:
    """The sums by day, from the pieces of the timeline, one by one."""
    sums: Counter[tuple[int, int, Bucket, str]] = Counter()
    for piece in pieces:
        start_ns = piece.start_ns
        while start_ns < piece.end_ns:
            end_ns = min(piece.end_ns, (start_ns // DAY_NS + 1) * DAY_NS)
            label = piece.label if piece.bucket is Bucket.CUSTOM else ""
            sums[piece.attempt, start_ns // DAY_NS, piece.bucket, label] += end_ns - start_ns
            start_ns = end_ns
    order = list(Bucket)
    keys = sorted(sums, key=lambda key: (key[0], key[1], order.index(key[2]), key[3]))
    return [DaySum(*key, sums[key]) for key in keys]


@settings(max_examples=200, deadline=None)
@given(lives(), st.sampled_from([1, 300, 2_000, 40_000]))
def test_days_are_the_pieces_of_the_timeline_cut_at_midnight(
    sizes: Sizes, life: tuple[list[Payload], float], factor: int
) -> None:
    payloads, now = life
    ledger = ledger_of(slower(payloads, factor), sizes)
    for now_ns in (PROCESS_GONE, int(BASE + now * factor) * 10**9):
        days = ledger.days(now_ns)
        assert days == days_of(ledger.timeline(now_ns))
        for summary in ledger.attempts(now_ns):
            mine = [one for one in days if one.attempt == summary.number]
            for bucket in Bucket:
                assert sum(one.ns for one in mine if one.bucket is bucket) == summary.buckets.get(bucket, 0)
        whole = ledger.summary(now_ns)
        assert sum(one.ns for one in days) == (whole.wall_ns if whole else 0)


def test_a_step_over_midnight_is_of_both_days() -> None:
    job = History().start(0).steps(range(5), at=TO_MIDNIGHT - 15).end(TO_MIDNIGHT + 35)
    job.custom(TO_MIDNIGHT - 4, TO_MIDNIGHT + 2)
    days = ledger_of(job.payloads).days(PROCESS_GONE)
    day = int(BASE) // 86_400
    assert days == [
        DaySum(1, day, Bucket.CUSTOM, "EVAL", 4 * 10**9),
        DaySum(1, day, Bucket.PROGRAM_STARTUP, "", 2 * 10**9),
        DaySum(1, day, Bucket.PRODUCTIVE, "", 9 * 10**9),
        DaySum(1, day, Bucket.UNKNOWN, "", 6_385 * 10**9),
        DaySum(1, day + 1, Bucket.CUSTOM, "EVAL", 2 * 10**9),
        DaySum(1, day + 1, Bucket.PRODUCTIVE, "", 33 * 10**9),
    ]


def test_nothing_recorded_has_no_days() -> None:
    assert Ledger().days(5) == []
