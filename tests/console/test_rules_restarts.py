"""The rules on restarts find crash loops, and show what restarts cost, by cause."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ml_diagnostics_common.story import Confidence
from ml_diagnostics_console._facts.facts import AttemptFacts, Facts
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.verdict import Blame, CostBasis, NotChecked, Part, Verdict, VerdictClass
from ml_goodput_measurement.partition import Bucket, Piece

from tests.console.made_facts import after, attempt, facts, process
from tests.console.made_ledgers import disruption, report, summary

RULES = {rule.id: rule for rule in all_rules()}
GLOO = "exception: XlaRuntimeError: INTERNAL: Gloo all-reduce failed: Connection reset by peer"


def judged(rule: str, known: Facts) -> Verdict | NotChecked | None:
    return RULES[rule].judge(known)


def verdict(rule: str, known: Facts) -> Verdict:
    found = judged(rule, known)
    assert isinstance(found, Verdict), found
    json.dumps(found.to_json())
    return found


def failed(
    number: int,
    end: str = "exception: ValueError: batch 12 is empty",
    *,
    step: int | None = 30,
    culprit: int = 1,
    **fields: Any,
) -> AttemptFacts:
    """Return an attempt of three processes that failed 60 s after its start; one starts each 100 s."""
    start = 100.0 * (number - 1)
    processes = []
    for index in range(3):
        how, ended = (end, start + 60) if index == culprit else (GLOO, start + 60.1)
        known = {"started_ns": after(start), "last_event_ns": after(start + 61), **fields}
        processes.append(process(index, step=step, end=how, ended=ended, **known))
    return attempt(processes, number, started_ns=after(start))


# --- R1 -----------------------------------------------------------------------------------------------------


def test_three_attempts_with_the_same_failure_are_a_crash_loop() -> None:
    known = facts(
        *(failed(number, f"exception: ValueError: batch {number} of /data/{number} is empty") for number in (1, 2, 3)),
        now_ns=after(261),
    )
    found = verdict("R1", known)
    assert found.sentence.startswith("crash loop: attempts 1 to 3 ended by the same failure, on host-1 at step 30 (")
    assert "ValueError: batch 3 of /data/3 is empty; none got further than step 30 in 3 attempts" in found.sentence
    assert found.confidence is Confidence.PROVEN
    assert found.blame is Blame.USER
    assert found.verdict_class is VerdictClass.RESTARTS
    assert found.cost is not None
    assert found.cost.seconds == pytest.approx(200.1, abs=1.5)
    assert len(found.evidence) == 3
    assert judge(known).headline.rule == "R1"
    assert "C1" not in {each.rule for each in judge(known).shown}


def test_a_crash_loop_before_the_first_step_has_made_no_step() -> None:
    attempts = [failed(number, "exception: KeyError: lr", step=None) for number in (1, 2, 3)]
    assert "no step was made in 3 attempts" in verdict("R1", facts(*attempts)).sentence


def test_a_crash_loop_needs_no_host_of_the_same_name() -> None:
    attempts = [
        attempt([process(0, host=f"pod-{number}", step=30, end="exit: 3", ended=100.0 * number)], number)
        for number in (1, 2, 3)
    ]
    assert "last on pod-3" in verdict("R1", facts(*attempts)).sentence


def test_the_next_attempt_of_a_crash_loop_runs() -> None:
    attempts = [failed(number) for number in (1, 2, 3)]
    running = attempt([process(index, step=12, started_ns=after(300)) for index in range(3)], 4, started_ns=after(300))
    assert "attempt 4 runs" in verdict("R1", facts(*attempts, running, is_live=True, now_ns=after(330))).sentence
    further = attempt([process(index, step=31, started_ns=after(300)) for index in range(3)], 4, started_ns=after(300))
    assert judged("R1", facts(*attempts, further, is_live=True, now_ns=after(330))) is None


@pytest.mark.parametrize(
    "attempts",
    [
        [failed(1), failed(2)],
        [failed(1), failed(2), failed(3, "exception: KeyError: x")],
        [failed(1), failed(2), failed(3, culprit=2)],
        [failed(1, step=30), failed(2, step=30), failed(3, step=60)],
        [failed(1), attempt([process(0, step=30, end="clean")], 2), failed(3)],
        [failed(number, "signal: SIGTERM") for number in (1, 2, 3)],
    ],
    ids=["two", "another failure", "another host", "got further", "one ended well", "preemptions"],
)
def test_what_may_get_further_is_not_a_crash_loop(attempts: list[AttemptFacts]) -> None:
    assert judged("R1", facts(*attempts)) is None


def test_a_loop_that_began_later_is_found_after_other_attempts() -> None:
    attempts = [failed(1, "signal: SIGTERM"), failed(2, step=10), *(failed(number) for number in (3, 4, 5))]
    assert "attempts 3 to 5" in verdict("R1", facts(*attempts)).sentence


def test_a_thousand_attempts_are_judged() -> None:
    found = verdict("R1", facts(*(failed(number) for number in range(1, 1_001))))
    assert "in 1000 attempts" in found.sentence
    assert len(found.evidence) == 10


# --- R2 -----------------------------------------------------------------------------------------------------


def restarts(count: int = 4, *, end: str = "signal: SIGTERM", seconds: float = 1000.0, **fields: Any) -> Facts:
    attempts = [failed(number, end) for number in range(1, count + 1)]
    last = attempt([process(0, step=400, started_ns=after(100 * count))], count + 1, started_ns=after(100 * count))
    disruptions = [
        disruption(number, number, last_event_ns=after(100 * number - 40), **fields) for number in range(1, count + 1)
    ]
    pieces = tuple(
        Piece(after(10 * number), after(10 * number + 0.02), Bucket.CHECKPOINT_SAVE, 1) for number in range(10)
    )
    buckets = {Bucket.WASTED_PROGRESS: 80.0, Bucket.INFRASTRUCTURE_RECOVERY: 500.0, Bucket.CHECKPOINT_SAVE: 0.2}
    ledger = report([summary(1, 0, 60)], disruptions, seconds=seconds, buckets=buckets, timeline=pieces)
    return facts(*attempts, last, ledger=ledger, is_live=True, now_ns=after(seconds))


def test_restarts_are_counted_by_the_side_that_they_are_due_to() -> None:
    found = verdict("R2", restarts())
    assert found.sentence.startswith(
        "4 restarts cost 60.0 % of the time: 60.0 % to preemptions; 40 steps had to be repeated in 1 min 20 s"
    )
    assert found.blame is Blame.PREEMPTION
    assert found.part is Part.CONTRIBUTING
    assert found.cost is not None
    assert (found.cost.seconds, found.cost.basis) == (600.0, CostBasis.LEDGER)
    assert found.evidence[1].shows.endswith("after host-1: SIGTERM")
    assert verdict("R2", restarts(end="exception: ValueError: x")).blame is Blame.USER
    assert verdict("R2", restarts(end="signal: SIGSEGV")).blame is Blame.UNKNOWN


def test_the_better_interval_of_saves_is_advised() -> None:
    # sqrt(2 x 0.02 s x 250 s) = 3.2 s: two steps, instead of 42 s, since 419.8 s are productive with 10 saves.
    found = verdict("R2", restarts())
    assert found.sentence.endswith("; save every 2 steps instead of 21: a save takes 20.0 ms")


@pytest.mark.parametrize(
    "known",
    [
        restarts(1),
        restarts(
            4, seconds=1000.0, infrastructure_ns=0, init_ns=0, restore_ns=0, startup_ns=0, recompute_ns=12 * 10**9
        ),
    ],
    ids=["one", "4.8 %"],
)
def test_few_or_cheap_restarts_have_no_verdict(known: Facts) -> None:
    assert judged("R2", known) is None


def test_without_a_ledger_restarts_are_not_checked() -> None:
    found = judged("R2", facts(failed(1), failed(2)))
    assert isinstance(found, NotChecked)
    assert "ml_goodput_measurement" in found.why


def test_a_job_that_runs_after_expensive_restarts_shows_so() -> None:
    assert judge(restarts()).headline.rule == "R2"
    assert judge(restarts()).exit_code == 16


def test_a_restart_from_an_older_checkpoint_than_the_last_is_found() -> None:
    saved = {"last_step": 90, "last_checkpoint_step": 80, "previous_checkpoint_step": 60}
    attempts = [summary(1, 0, 60, **saved), summary(2, 180, 1000)]

    def known(resumed: int) -> Facts:
        cut = disruption(1, 1, resumed_step=resumed, steps_lost=90 - resumed, recompute_ns=90 * 10**9)
        last = attempt([process(0, step=400, end="clean", ended=900)], 2)
        return facts(failed(1), last, ledger=report(attempts, [cut]))

    found = verdict("R2", known(2))
    assert found.sentence.startswith("attempt 2 resumed at step 2 (")
    assert "though the checkpoint of step 60 was complete: 58 saved steps had to be repeated" in found.sentence
    assert found.blame is Blame.USER
    assert judge(known(2)).exit_code == 16
    # That of step 80 may not have been complete, and the step after a checkpoint may have its number.
    assert isinstance(judged("R2", known(58)), Verdict)
    assert judged("R2", known(59)) is None
    assert judged("R2", known(81)) is None
