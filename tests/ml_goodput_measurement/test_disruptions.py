"""The cost of a disruption: its parts are time of the buckets, and the step in flight follows from the records."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ml_goodput_measurement.partition import AttemptSummary, Bucket, Disruption, Piece

from . import oracle
from .accounts import SECOND_NS, moment_ns
from .histories import History, Payload
from .lives import ledger_of, lives, thorough
from .sample_reports import killed_and_resumed, report_of

PARTS = {
    "infrastructure_ns": (Bucket.INFRASTRUCTURE_RECOVERY,),
    "init_ns": (Bucket.TPU_INITIALIZATION, Bucket.TRAINING_PREP),
    "restore_ns": (Bucket.CHECKPOINT_RESTORE,),
    "data_loading_ns": (Bucket.DATA_LOADING_SYNC,),
    "startup_ns": (Bucket.PROGRAM_STARTUP,),
    "recompute_ns": (Bucket.WASTED_PROGRESS,),
}


def cost_of(disruption: Disruption) -> dict[str, Any]:
    """The step in flight, the steps lost and, in seconds, the parts that there are."""
    parts = {name.removesuffix("_ns"): getattr(disruption, name) / SECOND_NS for name in PARTS}
    more = {name: seconds for name, seconds in parts.items() if seconds}
    return {"in flight": disruption.step_in_flight, "lost": disruption.steps_lost, **more}


# Those of contract 4.1, as in test_worked_truths.py: steps of 10 s.
WORKED = {
    "an outage with an exact resume": (
        History().start(0).steps(range(10), at=10).start(1110).steps(range(10, 20), at=1120).end(1220),
        [{"in flight": 9, "lost": 0, "infrastructure": 1000}],
    ),
    "a restart from 0": (
        History().start(0).steps(range(10), at=10).start(130).steps(range(10), at=140).end(240),
        [{"in flight": 9, "lost": 10, "infrastructure": 20, "recompute": 100}],
    ),
    "a rollback": (
        History().start(0).steps(range(10), at=10).start(130).steps(range(5, 10), at=140).end(190),
        [{"in flight": 9, "lost": 5, "infrastructure": 20, "recompute": 50}],
    ),
    # The second one loses 5 to 7 of the second attempt and 3 and 4 of the first.
    "a second rollback below the first": (
        History()
        .start(0)
        .steps(range(10), at=10)
        .start(130)
        .steps([5, 6, 7], at=140)
        .start(200)
        .steps(range(3, 10), at=210)
        .end(280),
        [
            {"in flight": 9, "lost": 5, "infrastructure": 20, "recompute": 50},
            {"in flight": 7, "lost": 5, "infrastructure": 30, "recompute": 50},
        ],
    ),
    "a crash loop": (
        History()
        .start(0)
        .init(0, 20)
        .steps(range(10), at=20)
        .start(150)
        .init(150, 170)
        .start(200)
        .init(200, 220)
        .start(250)
        .init(250, 270)
        .steps(range(10, 20), at=270)
        .end(370),
        [{"in flight": 9, "lost": 0, "infrastructure": 130, "init": 20}],
    ),
    "a job that was resumed after its end": (
        History().start(0).steps(range(10), at=10).end(110).start(200).steps(range(10, 20), at=210).end(310),
        [{"in flight": None, "lost": 0, "infrastructure": 90}],
    ),
    # Each attempt loads 1 s before every step; only its first load holds anything up.
    "a load for each step": (
        History()
        .start(0)
        .load(9, 10)
        .load(19, 20)
        .steps(range(2), at=10)
        .start(40)
        .load(49, 50)
        .load(59, 60)
        .steps(range(2, 4), at=50)
        .end(70),
        [{"in flight": 1, "lost": 0, "infrastructure": 10, "data_loading": 1}],
    ),
    "a load that outlasts the job": (
        History().start(0).steps(range(2), at=0).start(40).load(41, 60).end(50),
        [{"in flight": 1, "lost": 0, "infrastructure": 20, "data_loading": 50 - 41}],
    ),
}


@pytest.mark.parametrize("scenario", WORKED)
def test_the_worked_truths_are_reported_in_parts(scenario: str) -> None:
    history, expected = WORKED[scenario]
    assert [cost_of(disruption) for disruption in report_of(history).disruptions] == expected


def test_every_part_of_a_restart_is_reported() -> None:
    history = History().start(0).steps(range(4), at=0).start(100).init(100, 103).prepare(103, 108).restore(2, 108, 110)
    history.load(110, 111).step(2, 112).steps(range(3, 6), at=142).end(172)  # the first step takes 30 s, 20 too many
    [disruption] = report_of(history).disruptions
    parts = {"infrastructure": 60, "init": 8, "restore": 2, "data_loading": 1, "startup": 20, "recompute": 20}
    assert cost_of(disruption) == {"in flight": 3, "lost": 2, **parts}
    assert disruption.cost_ns == sum(parts.values()) * SECOND_NS


def test_a_step_with_a_recorded_end_is_not_in_flight() -> None:
    job = History().start(0).steps(range(4), at=0).step_end(3, 39).start(100).steps(range(4, 6), at=100).end(120)
    assert [cost_of(disruption)["in flight"] for disruption in report_of(job).disruptions] == [None]


def test_the_end_of_another_step_is_not_the_end_of_the_last() -> None:
    job = History().start(0).steps(range(4), at=0).step_end(2, 29).start(100).steps(range(4, 6), at=100).end(120)
    assert [cost_of(disruption)["in flight"] for disruption in report_of(job).disruptions] == [3]


def test_a_job_that_has_made_no_step_since_has_lost_none_yet() -> None:
    job = History().start(0).steps(range(4), at=0).start(100).init(100, 130)
    [disruption] = report_of(job, now=150).disruptions
    assert cost_of(disruption) == {"in flight": 3, "lost": 0, "infrastructure": 60, "init": 30}


@pytest.mark.parametrize(
    ("excluded", "part", "seconds"),
    [
        ((115, 125), "infrastructure", 17 - 10),
        ((110, 120), "recompute", 40 - 3),
        ((90, 100), "recompute", 40 - 10),
        ((132, 137), "init", 6 - 4),  # initialised and prepared from 131 to 136 and from 139 to 140
        ((0, 1), "infrastructure", 17),
        ((0, 200), "infrastructure", 0),
        ((0, 200), "recompute", 0),
    ],
)
def test_excluded_time_costs_no_disruption_anything(excluded: tuple[int, int], part: str, seconds: int) -> None:
    """Killed in step 9 after 103 s, steps 6 to 9 lost from 73 to 113; back after 130 s."""
    [disruption] = report_of(killed_and_resumed(), excluded=[excluded]).disruptions
    assert cost_of(disruption).get(part, 0) == seconds


@st.composite
def exclusions(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Some disjoint stretches of a generated life, in order."""
    cuts = sorted(draw(st.sets(st.integers(0, 400), max_size=6)))
    return [(moment_ns(first / 4), moment_ns(last / 4)) for first, last in zip(cuts[::2], cuts[1::2], strict=False)]


def first_loads_ns(payloads: list[Payload], timeline: list[Piece], attempts: list[AttemptSummary]) -> int:
    """Return the time that is counted for the first load of each of some attempts."""
    facts = oracle.Facts(payloads)
    lives = oracle.find_attempts(facts)
    for life, following in itertools.pairwise(lives):
        life.next_start = following.start
    lives[-1].is_last = True
    loads = oracle.find_first_loads(facts, [life for life in lives if life.start >= attempts[0].start_ns])
    waits = [piece for piece in timeline if piece.bucket is Bucket.DATA_LOADING_SYNC]
    return sum(
        max(0, min(load.last, piece.end_ns) - max(load.first, piece.start_ns)) for load in loads for piece in waits
    )


@thorough(100)
@given(lives(), exclusions())
def test_over_all_disruptions_each_part_sums_to_its_buckets(
    life: tuple[list[Payload], float], excluded: list[tuple[int, int]]
) -> None:
    """Parts sum to the buckets after the first attempt that made steps; before it nothing was disrupted."""
    payloads, now = life
    ledger = ledger_of(payloads)
    attempts = ledger.attempts(moment_ns(now), excluded)
    disruptions = ledger.disruptions(attempts, excluded)
    assume(disruptions)
    first = next(index for index, attempt in enumerate(attempts) if attempt.first_step is not None)
    for part, buckets in PARTS.items():
        paid = [getattr(disruption, part) for disruption in disruptions]
        # Recovery and lost steps belong to the attempt that was cut short, the rest to the resumed one.
        first_attempt = first if part in ("infrastructure_ns", "recompute_ns") else first + 1
        spent = sum(attempt.buckets.get(bucket, 0) for attempt in attempts[first_attempt:] for bucket in buckets)
        assert min(paid) >= 0
        if part == "data_loading_ns":  # Loads between later steps are not the price of a restart.
            spent = first_loads_ns(payloads, ledger.timeline(moment_ns(now), excluded), attempts[first_attempt:])
        assert sum(paid) == spent
    for disruption in disruptions:
        assert disruption.cost_ns == sum(getattr(disruption, part) for part in PARTS)
    assert sum(disruption.steps_lost for disruption in disruptions) == sum(one.steps_lost for one in attempts)


@thorough(100)
@given(lives(), exclusions())
def test_the_buckets_of_an_attempt_sum_to_its_span(
    life: tuple[list[Payload], float], excluded: list[tuple[int, int]]
) -> None:
    payloads, now = life
    ledger = ledger_of(payloads)
    summary = ledger.summary(moment_ns(now))
    assume(summary is not None)
    attempts = ledger.attempts(moment_ns(now), excluded)
    borders = [*(attempt.start_ns for attempt in attempts), summary.end_ns]
    for attempt, (start_ns, end_ns) in zip(attempts, itertools.pairwise(borders), strict=True):
        assert sum(attempt.buckets.values()) == end_ns - start_ns
        assert sum(attempt.custom.values()) == attempt.buckets.get(Bucket.CUSTOM, 0)
        assert min([*attempt.buckets.values(), *attempt.custom.values()], default=0) >= 0


@thorough(100)
@given(lives())
def test_the_step_in_flight_is_the_last_one_without_a_recorded_end(life: tuple[list[Payload], float]) -> None:
    payloads, now = life
    ledger = ledger_of(payloads)
    in_flight = [one.step_in_flight for one in ledger.disruptions(ledger.attempts(moment_ns(now)))]
    facts = oracle.Facts(payloads)
    attempts = oracle.find_attempts(facts) if facts.moments else []
    assert in_flight == [
        _in_flight(facts, attempt.steps[-1], following.start)
        for attempt, following in itertools.pairwise(attempts)
        if attempt.steps
    ]


def _in_flight(facts: oracle.Facts, last: oracle.Step, until: int) -> int | None:
    has_ended = any(last.at <= at <= until for at in facts.job_ends)
    return None if has_ended or oracle.recorded_end(facts, last, until) is not None else last.number
