"""Stretches of a job's time by ours and the public library: equal where the window's edges lie on entries of a steady
job, or are those of its life; otherwise each difference of the contract occurs.
"""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import pytest

from .accounts import calculator_of, flat
from .histories import BASE, History, MemoryLog
from .reference.cases import SAME
from .reference.process import Reference, ReferenceRaisedError
from .test_intervals import at

Answer = dict[str, Any]

JUST_BEFORE = 1 / 1024
"""The reference leaves out what lies on the window's first edge."""


def theirs(reference: Reference, history: History, now: float, first: float, last: float, zone: str = "utc") -> Answer:
    answer: Answer = reference.ask(
        "interval", payloads=history.payloads, now=BASE + now, first=BASE + first, last=BASE + last, zone=zone
    )
    return answer


def ours(history: History, now: float, first: float, last: float, cache_dir: Path) -> Answer:
    calculator = calculator_of(MemoryLog(history.payloads), now, cache_dir)
    percent, breakdown, last_step, seconds, disruptions = calculator.get_job_goodput_interval(at(first), at(last))
    details = calculator.get_interval_metric_details(at(first), at(last))
    return {
        "percent": percent,
        "shares": flat(breakdown),
        "last_step": last_step,
        "seconds": seconds,
        "disruptions": disruptions,
        "details_percent": next(iter(details["interval_goodput"].values())),
        "details_shares": flat(details["interval_badput"]),
        "details_size": details["interval_size"],
    }


def check(ours: Answer, theirs: Answer, why: object = None) -> None:
    for shares in ("shares", "details_shares"):
        assert ours[shares] == pytest.approx(theirs[shares], abs=1e-6), why
    for number in ("percent", "seconds", "details_percent"):
        assert ours[number] == pytest.approx(theirs[number], abs=1e-6), why
    assert ours["details_size"] == pytest.approx(theirs["details_size"], abs=1), why  # Theirs is whole seconds.
    assert (ours["last_step"], ours["disruptions"]) == (theirs["last_step"], theirs["disruptions"]), why


def steady(seed: int) -> tuple[History, list[float]]:
    """A job with steps of one length, saves in some, and custom events in all or none; and the starts of its steps."""
    rng = random.Random(seed)
    history, length = History().start(0).init(1, 9).prepare(9, 12), rng.randint(4, 40) / 2
    starts = [12 + step * length for step in range(rng.randint(10, 60))]
    for step, start in enumerate(starts):
        history.step(step, start)
        if seed % 2:
            history.custom(start + length / 8, start + length / 4, rng.choice(["eval", "Scan"]))
        if step % 5 == 4:
            history.save(step, start + length / 2, start + length * 3 / 4)
    history.end(starts[-1] + length)
    return history, starts


@pytest.mark.parametrize("kind", sorted(set(SAME) - {"running", "late_and_twice"}))
def test_a_window_of_the_whole_life(kind: str, reference: Reference, tmp_path: Path) -> None:
    for seed in range(8):
        case = SAME[kind](seed)
        result = ours(case.history, case.now, 0, case.now, tmp_path)
        check(result, theirs(reference, case.history, case.now, -1, case.now), seed)


def test_windows_between_steps_of_a_steady_job(reference: Reference, tmp_path: Path) -> None:
    for seed in range(25):
        history, starts = steady(seed)
        rng = random.Random(seed + 99)
        first, last = sorted(rng.sample(starts[1:], 2))
        if starts.index(last) - starts.index(first) < 3:
            continue
        result = ours(history, starts[-1] + 30, first, last, tmp_path)
        check(result, theirs(reference, history, starts[-1] + 30, first - JUST_BEFORE, last), (seed, first, last))


STEADY = History().start(0).steps(range(100), at=0).end(1000)


def test_the_window_that_was_asked_for_is_the_whole(reference: Reference, tmp_path: Path) -> None:
    """A window of 200 s between the steps of a job of 10 s steps: the reference returns 190 s."""
    result = ours(STEADY, 2000, 203, 403, tmp_path)
    public = theirs(reference, STEADY, 2000, 203, 403)
    assert (public["seconds"], public["percent"], public["last_step"]) == (190, 100, 39)
    assert (result["seconds"], result["percent"], result["last_step"]) == (200, 100, 39)


def test_an_idle_tail_stays_in_the_window(reference: Reference, tmp_path: Path) -> None:
    """100 s of steps and 900 s of silence: the reference returns the first 90 s."""
    history = History().start(0).steps(range(10), at=0)
    result, public = ours(history, 1000, 0, 1000, tmp_path), theirs(reference, history, 1000, -1, 1000)
    assert (public["seconds"], public["percent"]) == (90, 100)
    assert (result["seconds"], result["percent"]) == (1000, pytest.approx(9))
    assert result["shares"]["OTHER"] == pytest.approx(91)


@pytest.mark.parametrize(("first", "last", "error"), [(45, 55, "Start time is on or after end"), (42, 48, "No log")])
def test_a_window_with_one_entry_or_none_is_answered(
    first: float, last: float, error: str, reference: Reference, tmp_path: Path
) -> None:
    with pytest.raises(ReferenceRaisedError, match="ValueError"):
        theirs(reference, STEADY, 2000, first, last)
    result = ours(STEADY, 2000, first, last, tmp_path)
    assert (result["seconds"], result["percent"]) == (last - first, 100)


def test_naive_datetimes_are_local_time(reference: Reference, tmp_path: Path) -> None:
    with pytest.raises(ReferenceRaisedError, match="TypeError: can't compare offset-naive and offset-aware"):
        theirs(reference, STEADY, 2000, 200, 400, zone="naive")
    calculator = calculator_of(MemoryLog(STEADY.payloads), 2000, tmp_path)
    naive = [datetime.datetime.fromtimestamp(BASE + second) for second in (200, 400)]
    assert calculator.get_job_goodput_interval(*naive)[3] == 200


def test_an_outage_is_a_disruption_also_where_the_steps_before_it_lie_outside(
    reference: Reference, tmp_path: Path
) -> None:
    """Steps to 100 s, an outage to 500 s, back at an earlier step; the window starts in the outage."""
    history = History().start(0).steps(range(10), at=0).start(500).steps(range(8, 20), at=500).end(620)
    result, public = ours(history, 700, 300, 620, tmp_path), theirs(reference, history, 700, 300, 620)
    assert (public["disruptions"], public["seconds"], public["percent"]) == (0, 120, 100)
    assert (result["disruptions"], result["seconds"], result["percent"]) == (1, 320, pytest.approx(100 * 120 / 320))
    assert result["shares"]["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == pytest.approx(100 * 200 / 320)


def test_the_first_step_of_a_window_is_not_the_startup_of_the_job(reference: Reference, tmp_path: Path) -> None:
    """Step 5 is 10 s slower than the others, and a window starts with it."""
    history = History().start(0).steps(range(6), at=0).steps(range(6, 12), at=70).end(130)
    result, public = ours(history, 200, 50, 130, tmp_path), theirs(reference, history, 200, 50 - JUST_BEFORE, 130)
    assert public["shares"]["PROGRAM_STARTUP"] == pytest.approx(100 * 10 / 80)
    assert (result["percent"], result["shares"]["PROGRAM_STARTUP"]) == (100, 0)


@pytest.mark.parametrize("between", [600.0, None])
def test_a_save_counts_in_its_window_with_any_first_key(
    between: float | None, reference: Reference, tmp_path: Path
) -> None:
    """The reference uses the first value with `time` in its key as the time of an entry."""
    save = History().save(4, 42, 46).payloads[0]
    del save["time_between_consecutive_saves_sec"]
    history = History().start(0).steps(range(10), at=0).end(100)
    history.payloads.insert(6, {"time_between_consecutive_saves_sec": between, **save})
    result = ours(history, 200, 0, 100, tmp_path)
    assert result["shares"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == pytest.approx(4)
    plain = {"payloads": history.payloads, "now": BASE + 200, "first": BASE + 10, "last": BASE + 100}
    if between is None:
        with pytest.raises(ReferenceRaisedError, match="TypeError"):
            reference.ask("interval", **plain)
    else:
        assert reference.ask("interval", **plain)["shares"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == 0
