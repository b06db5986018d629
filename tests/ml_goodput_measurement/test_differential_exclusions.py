"""Goodput with exclusions by ours and the public library: equal where what is excluded lies in training, preparation
and initialisation, and nothing overlaps there; otherwise each difference of the contract occurs.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from .accounts import calculator_of, flat
from .histories import BASE, History, MemoryLog
from .reference.process import Reference
from .test_intervals import at

Answer = dict[str, Any]
Spans = Sequence[tuple[float, float]]


def theirs(reference: Reference, history: History, now: float, spans: Spans, zone: str = "utc") -> Answer:
    intervals = [(BASE + first, BASE + last) for first, last in spans]
    answer: Answer = reference.ask(
        "exclusions", payloads=history.payloads, now=BASE + now, intervals=intervals, zone=zone
    )
    return answer


def ours(history: History, now: float, spans: Spans, cache_dir: Path) -> Answer:
    calculator = calculator_of(MemoryLog(history.payloads), now, cache_dir)
    intervals = [(at(first), at(last)) for first, last in spans]
    percent, breakdown, last_step, excluded = calculator.get_job_goodput_with_exclusions(intervals, True)
    return {
        "percent": percent,
        "shares": flat(breakdown),
        "last_step": last_step,
        "excluded": excluded,
        "excluded_in_details": calculator.get_job_goodput_details()["total_excluded_time"],
    }


def generated(seed: int) -> tuple[History, float, list[tuple[float, float]]]:
    """A life without a slow start, its end, and stretches of it that are excluded."""
    rng = random.Random(seed)
    history, now = History().start(0), rng.randint(8, 80) / 4
    history.init(0, now)
    prepared = now + rng.randint(8, 40) / 4
    history.prepare(now, prepared)
    now = prepared
    usual = rng.randint(16, 160) / 4
    count = rng.randint(12, 40)
    for step in range(count):
        history.step(step, now)
        now += usual / 4 if step == 0 else usual + rng.choice([-0.25, 0, 0.25])
    now = history.last_moment() + usual - 0.25  # The last step takes no longer than the median.
    history.end(now)
    spans = []
    for _ in range(rng.randint(0, 4)):
        first = rng.uniform(0, now)
        spans.append((first, min(now, first + rng.uniform(0.1, now / 8))))
    if seed % 3 == 0:
        spans.append((-50.0, 0.0))  # Before the job: nothing of it is excluded.
    return history, now, spans


def test_exclusions_in_training_preparation_and_initialisation(reference: Reference, tmp_path: Path) -> None:
    for seed in range(40):
        history, now, spans = generated(seed)
        result, public = ours(history, now, spans, tmp_path), theirs(reference, history, now, spans)
        assert result["shares"] == pytest.approx(public["shares"], abs=1e-4), (seed, spans)
        assert result["percent"] == pytest.approx(public["percent"], abs=1e-4), (seed, spans)
        assert result["excluded"] == pytest.approx(public["excluded"], abs=1e-4), (seed, spans)
        assert result["last_step"] == public["last_step"]


def test_saves_cost_what_they_cost_without_exclusions(reference: Reference, tmp_path: Path) -> None:
    """Nothing is excluded: 92.86 % by the plain query of both; the reference's other one leaves the save out."""
    history = History().start(0).steps(range(4), at=2).save(0, 4, 5).end(42)
    plain = calculator_of(MemoryLog(history.payloads), 50, tmp_path).get_job_goodput(True)
    public, result = theirs(reference, history, 50, []), ours(history, 50, [], tmp_path)
    assert reference.ask("life", payloads=history.payloads, now=BASE + 50)["percent"] == pytest.approx(plain.goodput)
    assert result["percent"] == plain.goodput == pytest.approx(92.86, abs=0.005)
    assert public["percent"] == pytest.approx(95.24, abs=0.005)
    assert public["shares"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == 0
    assert result["shares"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == pytest.approx(100 / 42)


def test_custom_events_across_steps_count_with_and_without_exclusions(reference: Reference, tmp_path: Path) -> None:
    """An event of 4 s over the border of two steps: the reference knows it only where it is asked with exclusions."""
    history = History().start(0).steps(range(10), at=0).custom(48, 52).end(100)
    public = theirs(reference, history, 100, [])
    plain = reference.ask("life", payloads=history.payloads, now=BASE + 100)
    assert plain["percent"] == 100
    assert public["shares"]["CUSTOM_BADPUT_EVENTS.EVAL"] == 4
    result = ours(history, 100, [], tmp_path)
    plain_of_ours = calculator_of(MemoryLog(history.payloads), 100, tmp_path).get_job_goodput(True)
    assert (result["percent"], result["shares"]) == (plain_of_ours.goodput, flat(plain_of_ours.badput_breakdown))
    assert result["shares"] == pytest.approx({**result["shares"], **public["shares"]})


def test_a_restart_from_zero_wastes_the_same_with_and_without_exclusions(reference: Reference, tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=0).start(100).steps(range(10), at=100).end(200)
    public, result = theirs(reference, history, 200, []), ours(history, 200, [], tmp_path)
    wasted = "WASTED_PROGRESS_FROM_DISRUPTION"
    plain = reference.ask("life", payloads=history.payloads, now=BASE + 200)
    assert plain["badput"][wasted] == 0
    assert public["shares"][wasted] == 45  # Without the step in which it crashed.
    assert result["shares"][wasted] == 50
    assert flat(calculator_of(MemoryLog(history.payloads), 200, tmp_path).get_job_goodput(True)[1])[wasted] == 50


def test_time_of_two_activities_is_excluded_once(reference: Reference, tmp_path: Path) -> None:
    """5 s, of which 1 s is a data load inside a step, too: the reference excludes 6 s."""
    history = History().start(0).steps(range(10), at=0).load(42, 43).end(100)
    assert theirs(reference, history, 100, [(41, 46)])["excluded"] == 6
    assert ours(history, 100, [(41, 46)], tmp_path)["excluded"] == 5


def test_time_that_nothing_was_recorded_of_is_excluded_too(reference: Reference, tmp_path: Path) -> None:
    """400 s before the first step are excluded: the reference excludes nothing."""
    history = History().start(0).steps(range(10), at=500).end(600)
    public, result = theirs(reference, history, 600, [(50, 450)]), ours(history, 600, [(50, 450)], tmp_path)
    assert (public["excluded"], result["excluded"]) == (0, 400)
    assert public["percent"] == pytest.approx(100 * 100 / 600)
    assert result["percent"] == pytest.approx(100 * 100 / 200)


def test_elastic_time_is_also_reported_and_excluded(reference: Reference, tmp_path: Path) -> None:
    history = History().start(0).wait(10, 40).steps(range(10), at=50).end(150)
    public, result = theirs(reference, history, 150, [(30, 50)]), ours(history, 150, [(30, 50)], tmp_path)
    assert public["excluded"] == 0
    assert "ELASTIC_SLICE_DOWN" not in public["shares"]
    assert result["excluded"] == 20
    assert result["shares"]["ELASTIC_SLICE_DOWN"] == pytest.approx(100 * 20 / 130)


def test_a_job_that_went_on_after_its_end_has_at_most_100_percent(reference: Reference, tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=0).end(100).steps(range(10, 100), at=100)
    public, result = theirs(reference, history, 1000, []), ours(history, 1000, [], tmp_path)
    assert public["percent"] > 900
    assert result["percent"] == pytest.approx(99)  # It is not known yet whether the last step was kept.


def test_the_startup_is_that_of_the_job_without_exclusions(reference: Reference, tmp_path: Path) -> None:
    """All steps take 10 s. 5 s of step 5 are excluded: the reference takes step 0 for slower than the others."""
    history = History().start(0).steps(range(10), at=0).end(100)
    public, result = theirs(reference, history, 100, [(52, 57)]), ours(history, 100, [(52, 57)], tmp_path)
    assert public["shares"]["PROGRAM_STARTUP"] == pytest.approx(100 / 95 * 5 / 8)
    assert (result["shares"]["PROGRAM_STARTUP"], result["percent"]) == (0, 100)


def test_details_have_the_excluded_time(reference: Reference, tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=0).end(100)
    public, result = theirs(reference, history, 100, [(20, 40)]), ours(history, 100, [(20, 40)], tmp_path)
    assert (public["excluded"], public["excluded_in_details"]) == (20, 0)
    assert (result["excluded"], result["excluded_in_details"]) == (20, 20)


@pytest.mark.parametrize("zone", ["naive", "zoneinfo"])
def test_every_form_of_a_time_zone_is_understood(zone: str, reference: Reference, tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=0).end(100)
    assert theirs(reference, history, 100, [(20, 40)], zone)["excluded"] == 0
    assert theirs(reference, history, 100, [(20, 40)], "utc")["excluded"] == 20
    kind = None if zone == "naive" else ZoneInfo("UTC")
    asked = tuple(datetime.datetime.fromtimestamp(BASE + second, kind) for second in (20, 40))
    calculator = calculator_of(MemoryLog(history.payloads), 100, tmp_path)
    assert calculator.get_job_goodput_with_exclusions([(asked[0], asked[1])])[3] == 20
