"""Elastic jobs by ours and the public library: equal where waits lie outside of steps and slices are counted from the
start; otherwise each difference of the contract occurs.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from .accounts import flat
from .histories import BASE, History
from .reference.process import Reference
from .test_elastic import calculator, counts

Answer = dict[str, Any]


def theirs(reference: Reference, history: History, now: float) -> Answer:
    answer: Answer = reference.ask("elastic", payloads=history.payloads, now=BASE + now)
    return answer


def ours(history: History, now: float, cache_dir: Path) -> Answer:
    subject = calculator(history, now, cache_dir)
    subject.get_job_goodput(include_badput_breakdown=True)
    details = subject.get_job_goodput_details()
    return {
        "productive": next(iter(details["goodput_time"].values())),
        "badput": flat(details["badput_time"]),
        "elapsed": details["total_elapsed_time"],
        "stepping": details["stepping_slice_efficiency"],
        "available": details["available_slice_efficiency"],
    }


def generated(seed: int) -> tuple[History, float]:
    """Waits, and a reinitialisation over the initialisation, before the steps; slices are lost and added."""
    rng = random.Random(seed)

    def seconds() -> float:
        return rng.randint(4, 120) / 4

    history, now = History().start(0), seconds()
    counts(history, 0, rng.randint(0, 4), 4, rng.randint(0, 4))
    for kind in rng.sample(["slice_down", "scale_up", "my Scale_Up", "lost"], rng.randint(0, 4)):
        length = seconds()
        history.wait(now, now + length, kind)
        now += length + seconds()
    if rng.random() < 0.7:
        reinit, init, prep = seconds(), seconds(), seconds()
        history.reinitialize(now, now + reinit)
        started_at = now + rng.choice([0, 0.5]) * reinit
        history.init(started_at, started_at + init).prepare(started_at + init, started_at + init + prep)
        now = max(now + reinit, started_at + init + prep) + 0.25
    step_seconds = seconds()
    for step in range(rng.randint(4, 20)):
        if rng.random() < 0.3:
            counts(history, now, rng.randint(0, 4), 4, rng.randint(0, 4))
        history.step(step, now)
        now += step_seconds / 2 if step == 0 else step_seconds
    return history.end(now), now + rng.choice([0, 50])


def test_waits_before_the_steps_and_slices_counted_from_the_start(reference: Reference, tmp_path: Path) -> None:
    for seed in range(40):
        history, now = generated(seed)
        result, public = ours(history, now, tmp_path), theirs(reference, history, now)
        badput = public.pop("badput")
        nothing = dict.fromkeys(result["badput"], 0.0)  # What took no time is left out, or not.
        assert result.pop("badput") == pytest.approx(nothing | badput, abs=1e-6), seed
        assert result == pytest.approx(public, abs=1e-6), seed


def test_a_wait_inside_a_step_is_not_productive_too(reference: Reference, tmp_path: Path) -> None:
    """Four steps of 40 s, and a wait of 20 s in one: the reference returns 180 s in all."""
    history = History().start(0).steps(range(4), at=0, each=40).wait(50, 70).end(160)
    public, result = theirs(reference, history, 160), ours(history, 160, tmp_path)
    down = "ELASTIC_SLICE_DOWN"
    assert (public["productive"], public["badput"][down]) == (160, 20)
    assert result["badput"][down] == 20
    # Where a step waited, the first is longer than the others are in the mean.
    assert result["productive"] + result["badput"]["PROGRAM_STARTUP"] == 140


def test_time_before_the_first_count_of_slices_has_no_part_in_their_means(reference: Reference, tmp_path: Path) -> None:
    """Half of the slices step from 60 to 100 s, and the time before is unknown: which the reference counts as none."""
    history = counts(History().start(0).steps(range(10), at=0), 60, 1, 2, 2).end(100)
    public, result = theirs(reference, history, 100), ours(history, 100, tmp_path)
    assert (public["stepping"], public["available"]) == (pytest.approx(0.5 * 0.4), pytest.approx(0.4))
    assert (result["stepping"], result["available"]) == (0.5, 1.0)
