"""Any window of a job's life follows from the whole history, whatever is at its edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement._ledger.facts import Sizes
from ml_goodput_measurement.partition import Bucket, Piece

from .accounts import CUSTOM, PRODUCTIVE, RECOVERY, STARTUP, UNKNOWN, WASTED, moment_ns
from .histories import History, Payload
from .lives import deliver, ledger_of, lives, thorough

Life = tuple[list[Payload], float]
moments = st.integers(-8, 400).map(lambda quarters: quarters / 4)
spans = st.lists(st.tuples(moments, moments).map(sorted), min_size=1, max_size=4)

SECOND_NS = 10**9


@thorough(100)
@given(lives(), spans)
def test_a_window_is_that_part_of_the_timeline(sizes: Sizes, life: Life, asked: list[list[float]]) -> None:
    payloads, now = life
    ledger = ledger_of(payloads, sizes)
    pieces = ledger.timeline(moment_ns(now))
    windows = ledger.windows([(moment_ns(first), moment_ns(last)) for first, last in asked], moment_ns(now))
    assert len(windows) == (len(asked) if payloads else 0)
    for window in windows:
        inside = list(clipped(pieces, window.start_ns, window.end_ns))
        assert window.buckets == {
            bucket: sum(piece.end_ns - piece.start_ns for piece in inside if piece.bucket is bucket)
            for bucket in Bucket
        }
        assert window.estimated_ns == sum(piece.end_ns - piece.start_ns for piece in inside if piece.estimated)
        assert sum(window.custom.values()) == window.buckets[CUSTOM]
        assert sum(window.buckets.values()) + window.outside_ns == window.end_ns - window.start_ns


@thorough(100)
@given(lives(), spans, st.lists(moments, max_size=3), st.data())
def test_windows_are_the_same_for_any_order_of_the_log(
    sizes: Sizes, life: Life, asked: list[list[float]], queries: list[float], data: st.DataObject
) -> None:
    """Nor does it change anything that other windows were asked for on the way."""
    payloads, now = life
    intervals = [(moment_ns(first), moment_ns(last)) for first, last in asked]
    delivered = data.draw(st.permutations(payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(delivered)), max_size=4)))
    ledger = Ledger(sizes)
    for start, end in zip([0, *cuts], [*cuts, len(delivered)], strict=True):
        deliver(ledger, delivered[start:end])
        for asked_at in queries:
            ledger.windows([(0, moment_ns(asked_at)), *intervals], moment_ns(now))
    assert ledger.windows(intervals, moment_ns(now)) == ledger_of(payloads, sizes).windows(intervals, moment_ns(now))


@thorough(100)
@given(lives(), st.lists(moments, min_size=2, max_size=6, unique=True))
def test_adjacent_windows_sum_to_the_whole(sizes: Sizes, life: Life, borders: list[float]) -> None:
    payloads, now = life
    ledger = ledger_of(payloads, sizes)
    summary = ledger.summary(moment_ns(now))
    if summary is None:
        return
    edges = [summary.start_ns, *sorted(moment_ns(border) for border in borders), summary.end_ns]
    edges = sorted({min(max(edge, summary.start_ns), summary.end_ns) for edge in edges})
    windows = ledger.windows(list(pairwise(edges)), moment_ns(now))
    if not windows:
        return
    for bucket in Bucket:
        assert sum(window.buckets[bucket] for window in windows) == summary.buckets[bucket]
    whole_ns = summary.end_ns - summary.start_ns
    (whole,) = ledger.windows([(summary.start_ns, summary.end_ns)], moment_ns(now))
    assert whole.data_loading_async_ns == sum(window.data_loading_async_ns for window in windows)
    assert sum(whole.buckets.values()) == whole_ns
    assert windows[-1].last_step == summary.last_step
    resumed_at_the_end = ledger.attempts(moment_ns(now))[-1].start_ns == summary.end_ns
    assert sum(window.disruptions for window in windows) == summary.disruptions - (
        resumed_at_the_end and summary.disruptions > 0
    )


@thorough(100)
@given(lives(), spans)
def test_an_exclusion_takes_its_time_and_no_other(sizes: Sizes, life: Life, asked: list[list[float]]) -> None:
    payloads, now = life
    ledger = ledger_of(payloads, sizes)
    exclusions = merged(asked)
    summary = ledger.summary(moment_ns(now), exclusions)
    if summary is None:
        return
    kept = [piece for piece in ledger.timeline(moment_ns(now)) for piece in without(piece, exclusions)]
    assert {**summary.buckets, Bucket.EXCLUDED: 0} == sums(kept)
    assert sum(summary.buckets.values()) == summary.wall_ns
    timeline = ledger.timeline(moment_ns(now), exclusions)
    assert sum(piece.end_ns - piece.start_ns for piece in timeline) == summary.wall_ns
    assert sums(timeline) == summary.buckets
    attempts = ledger.attempts(moment_ns(now), exclusions)
    for bucket in Bucket:
        assert sum(attempt.buckets.get(bucket, 0) for attempt in attempts) == summary.buckets[bucket]


def test_a_late_border_that_takes_away_the_first_load_changes_windows_before_it(sizes: Sizes) -> None:
    payloads = History().start(0).load(100.5, 400).steps(range(50), at=90, each=5).payloads
    ledger = ledger_of(payloads, sizes)
    ledger.windows([(moment_ns(0), moment_ns(300))], moment_ns(500))
    late = History().start(350).payloads
    deliver(ledger, late)
    asked = [(moment_ns(0), moment_ns(300)), (moment_ns(200), moment_ns(450))]
    assert ledger.windows(asked, moment_ns(500)) == ledger_of([*payloads, *late], sizes).windows(asked, moment_ns(500))


def test_the_last_step_of_a_window_is_the_last_that_was_done_by_its_end(sizes: Sizes) -> None:
    history = History().start(0).step(0, 0).step_end(0, 8).step(1, 10).step_end(1, 18).step(2, 20).step_end(2, 25)
    history.start(100).step(2, 110).step(3, 120).end(130)
    ledger = ledger_of(history.payloads, sizes)
    seconds = [0, 7.75, 8, 12, 18, 21, 25, 60, 115, 119.75, 120, 125, 130, 140]
    windows = ledger.windows([(moment_ns(-1), moment_ns(second)) for second in seconds], moment_ns(200))
    assert [window.last_step for window in windows] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3]


def test_data_loads_beside_training_are_those_of_the_window(sizes: Sizes) -> None:
    history = History().start(0).load(0, 4).steps(range(10), at=5)
    for second in range(10, 100, 10):
        history.load(second, second + 3)
    ledger = ledger_of(history.end(105).payloads, sizes)
    asked = [(0, 105), (0, 20), (11, 12), (11, 52), (104, 500)]
    windows = ledger.windows([(moment_ns(first), moment_ns(last)) for first, last in asked], moment_ns(200))
    assert [window.data_loading_async_ns // SECOND_NS for window in windows] == [27, 3, 1, 13, 0]


def test_a_step_over_the_edge_counts_with_the_part_inside(sizes: Sizes) -> None:
    """Steady steps of 10 s in a window of 200 s are 200 s, not 190."""
    ledger = ledger_of(History().start(0).steps(range(100), at=0).payloads, sizes)
    (window,) = ledger.windows([(moment_ns(303), moment_ns(503))], moment_ns(1000))
    assert window.buckets[PRODUCTIVE] == 200 * SECOND_NS
    assert window.last_step == 49


def test_an_idle_tail_stays_in_the_window(sizes: Sizes) -> None:
    ledger = ledger_of(History().start(0).steps(range(11), at=0).end(110).payloads, sizes)
    (window,) = ledger.windows([(moment_ns(50), moment_ns(200))], moment_ns(500))
    assert (window.buckets[PRODUCTIVE], window.outside_ns) == (60 * SECOND_NS, 90 * SECOND_NS)


def test_an_outage_with_steps_before_the_window_is_a_disruption_of_it(sizes: Sizes) -> None:
    history = History().start(0).steps(range(10), at=0).start(1100).steps(range(10, 20), at=1100).end(1200)
    ledger = ledger_of(history.payloads, sizes)
    during, (before,) = (
        ledger.windows([(moment_ns(500), moment_ns(1150))], moment_ns(1200)),
        ledger.windows([(moment_ns(0), moment_ns(1100))], moment_ns(1200)),
    )
    assert during[0].disruptions == 1
    assert during[0].buckets[RECOVERY] == 600 * SECOND_NS
    assert before.disruptions == 0


def test_steps_that_are_repeated_after_the_window_are_wasted_in_it(sizes: Sizes) -> None:
    history = History().start(0).steps(range(10), at=0).start(200).steps(range(5, 20), at=200).end(350)
    (window,) = ledger_of(history.payloads, sizes).windows([(moment_ns(0), moment_ns(100))], moment_ns(350))
    assert (window.buckets[PRODUCTIVE], window.buckets[WASTED]) == (50 * SECOND_NS, 50 * SECOND_NS)
    assert window.last_step == 4


def test_the_startup_of_an_attempt_is_at_the_start_of_its_first_step(sizes: Sizes) -> None:
    history = History().start(0).step(0, 10).steps(range(1, 11), at=70).end(170)
    ledger = ledger_of(history.payloads, sizes)
    early, late = ledger.windows([(moment_ns(10), moment_ns(40)), (moment_ns(40), moment_ns(80))], moment_ns(170))
    assert early.buckets[STARTUP] == 30 * SECOND_NS
    assert (late.buckets[STARTUP], late.buckets[PRODUCTIVE]) == (20 * SECOND_NS, 20 * SECOND_NS)


def test_a_window_beside_the_job_holds_nothing(sizes: Sizes) -> None:
    ledger = ledger_of(History().start(0).steps(range(3), at=0).end(30).payloads, sizes)
    before, after = ledger.windows([(moment_ns(-50), moment_ns(-10)), (moment_ns(40), moment_ns(50))], moment_ns(60))
    assert before.outside_ns == 40 * SECOND_NS
    assert not any(before.buckets.values())
    assert (before.last_step, after.last_step) == (0, 2)
    assert after.outside_ns == 10 * SECOND_NS
    assert UNKNOWN in after.buckets


def clipped(pieces: list[Piece], start_ns: int, end_ns: int) -> Iterator[Piece]:
    for piece in pieces:
        first, last = max(piece.start_ns, start_ns), min(piece.end_ns, end_ns)
        if first < last:
            yield Piece(first, last, piece.bucket, piece.attempt, piece.label, piece.estimated)


def sums(pieces: Iterable[Piece]) -> dict[Bucket, int]:
    total = dict.fromkeys(Bucket, 0)
    for piece in pieces:
        total[piece.bucket] += piece.end_ns - piece.start_ns
    return total


def merged(asked: list[list[float]]) -> list[tuple[int, int]]:
    disjoint: list[tuple[int, int]] = []
    for first, last in sorted(asked):
        if disjoint and moment_ns(first) <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], moment_ns(last)))
        elif first < last:
            disjoint.append((moment_ns(first), moment_ns(last)))
    return disjoint


def without(piece: Piece, exclusions: list[tuple[int, int]]) -> Iterator[Piece]:
    at = piece.start_ns
    for first, last in exclusions:
        if at < first and at < piece.end_ns:
            yield from clipped([piece], at, min(first, piece.end_ns))
        at = max(at, min(last, piece.end_ns))
    yield from clipped([piece], at, piece.end_ns)
