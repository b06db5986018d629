"""Step times and moments of entries, by ours and the public library: equal except where the contract differs."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement import exclusion_utils, goodput_utils

from .accounts import calculator_of
from .histories import BASE, History, MemoryLog
from .reference.cases import CORRECTED, SAME
from .reference.process import Reference, ReferenceRaisedError

UTC = datetime.timezone.utc
FUNCTIONS = ("compute_ideal_step_time", "get_anomalous_and_normal_step_times", "get_extra_time_from_anomalous_steps")
KINDS = [*(set(SAME) - {"short_steps"}), "rollback", "restart_from_zero", "crash_loop", "saves_in_lost_work"]
"""Kinds of life with step times that are right in the reference."""


def step_times(seed: int) -> list[float]:
    """A second or longer, as the reference wants them; some far longer."""
    rng = random.Random(seed)
    usual, spread = rng.uniform(1.5, 30), rng.choice([0, 0.01, 0.4])
    times = [usual + rng.uniform(-spread, spread) for _ in range(rng.choice([1, 2, 3, 10, 57, 400]))]
    for index in rng.sample(range(len(times)), len(times) // 8):
        times[index] += rng.uniform(0, 100)
    return times


def flat(answer: Any) -> Any:
    """A pair of lists as one, for comparison: how many are in the first, then all."""
    return [len(answer[0]), *answer[0], *answer[1]] if isinstance(answer, (list, tuple)) else answer


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_step_times(function: str, reference: Reference) -> None:
    for seed in range(60):
        times = step_times(seed)
        theirs = reference.ask("call", function=function, arguments=[times])
        assert flat(getattr(goodput_utils, function)(times)) == pytest.approx(flat(theirs), abs=1e-9), seed


def test_functions_of_no_step_times(reference: Reference) -> None:
    for function in FUNCTIONS[:2]:
        theirs = reference.ask("call", function=function, arguments=[[]])
        assert flat(getattr(goodput_utils, function)([])) == flat(theirs)
    # The extra time of no steps is none; theirs is not a number.
    theirs = reference.ask("call", function=FUNCTIONS[2], arguments=[[]])
    assert theirs != theirs
    assert goodput_utils.get_extra_time_from_anomalous_steps([]) == 0.0


def test_steps_below_a_second_count_in_the_ideal(reference: Reference) -> None:
    for times, theirs, ours in (([0.5, 0.5, 0.5], None, 0.5), ([2.0, 2.0, 0.25], 2.0, 2.0), ([1.0, 1.5], 1.25, 1.25)):
        assert reference.ask("call", function=FUNCTIONS[0], arguments=[times]) == theirs
        if times[-1] != 0.25:
            assert goodput_utils.compute_ideal_step_time(times) == ours
    assert goodput_utils.compute_ideal_step_time([2.0, 2.0, 0.25]) == pytest.approx(4.25 / 3)


def test_percentiles(reference: Reference) -> None:
    rng = random.Random(1)
    for length in (0, 1, 2, 3, 10, 101):
        values = [rng.uniform(-5, 5) for _ in range(length)]
        for percentile in (0, 1, 12.5, 50, 90, 99.9, 100):
            theirs = reference.ask("call", function="compute_percentile", arguments=[values, percentile])
            assert goodput_utils.compute_percentile(values, percentile) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("mode", list(goodput_utils.MonitoringWindowType))
@pytest.mark.parametrize("length", [0, 1, 2, 50, 99, 100, 101, 199, 500, 1099, 1100, 1101, 2500])
def test_deviations_from_the_baseline(
    length: int, mode: goodput_utils.MonitoringWindowType, reference: Reference
) -> None:
    rng = random.Random(length)
    signed = rng.random() < 0.5  # With exclusions the reference's deviations are signed.
    deviations = {step: rng.uniform(-9 if signed else 0, 9) for step in range(7, 7 + length)}
    theirs = reference.ask("from_baseline", deviations=list(deviations.items()), mode=mode.value)
    ours = goodput_utils.compute_step_deviation_from_baseline(deviations, mode)
    assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_deviations_of_a_job(kind: str, reference: Reference, tmp_path: Path) -> None:
    for seed in range(8):
        case = {**SAME, **CORRECTED}[kind](seed)
        life = {"payloads": case.history.payloads, "now": BASE + case.now}
        calculator = calculator_of(MemoryLog(case.delivered), case.now, tmp_path)
        theirs = dict(reference.ask("step_deviation", **life, ideal=7.25))
        ours = calculator.get_step_deviation(7.25)
        lost = theirs.keys() - ours.keys()
        assert all(step > max(ours) for step in lost), seed  # The last attempt did not reach that step again.
        assert ours == pytest.approx({step: theirs[step] for step in theirs if step not in lost}, abs=1e-6), seed
        if not lost:
            assert calculator.get_step_deviation() == pytest.approx(
                dict(reference.ask("step_deviation", **life)), abs=1e-6
            )


def test_an_outage_is_not_a_step_time(reference: Reference, tmp_path: Path) -> None:
    """Steps 0 to 4, an outage of 1000 s, steps 5 to 9: the reference takes it for the time of step 4."""
    history = History().start(0).steps(range(5), at=0).start(1000).steps(range(5, 10), at=1000).end(1050)
    theirs = dict(reference.ask("step_deviation", payloads=history.payloads, now=BASE + 1050, ideal=10.0))
    ours = calculator_of(MemoryLog(history.payloads), 1050, tmp_path).get_step_deviation(10.0)
    assert theirs.pop(4) == 950
    assert ours.get(4, 0.0) == 0
    assert {step: ours[step] for step in theirs} == theirs


def test_a_job_of_steps_below_a_second_has_deviations(reference: Reference, tmp_path: Path) -> None:
    history = History().start(0).steps(range(5), at=0, each=0.5)
    with pytest.raises(ReferenceRaisedError, match="ValueError: No ideal step time available"):
        reference.ask("step_deviation", payloads=history.payloads, now=BASE + 2.5)
    ours = calculator_of(MemoryLog(history.payloads), 2.5, tmp_path).get_step_deviation()
    assert ours == dict.fromkeys(range(4), 0.0)


EVENTS = (
    History()
    .start(1)
    .end(2)
    .step(3, 4)
    .init(5, 6)
    .prepare(7, 8)
    .load(9, 10)
    .custom(11, 12)
    .wait(13, 14)
    .reinitialize(15, 16)
    .save(17, 18, 19)
    .restore(20, 21, 22)
    .add(active_slices=1, total_slices=2, available_slices=2, elastic_slice_counts_timestamp=BASE + 23)
    .add(some="thing")
)


@pytest.mark.parametrize("entry", EVENTS.payloads, ids=lambda entry: list(entry)[-1])
def test_the_moment_of_an_entry(entry: dict[str, Any], reference: Reference) -> None:
    moment = goodput_utils.get_timestamp_from_log_entry(entry)
    assert (None if moment is None else moment.timestamp()) == reference.ask("entry_moment", entry=entry)


def test_a_duration_is_not_a_timestamp(reference: Reference) -> None:
    """Orbax logs the time since its last save: the reference takes it for a timestamp if that key is the first."""
    entry = {"time_between_consecutive_saves_sec": 600.0, **History().save(1, 18, 19).payloads[0]}
    entry["time_between_consecutive_saves_sec"] = 600.0
    assert reference.ask("entry_moment", entry=entry) == 600
    moment = goodput_utils.get_timestamp_from_log_entry(entry)
    assert moment is not None
    assert moment.timestamp() == BASE + 18


def bounds(seed: int) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    starts = [BASE + rng.randint(0, 400) / 4 for _ in range(rng.randint(0, 8))]
    return [(start, start + rng.randint(0, 80) / 4) for start in starts]


def test_exclusions_are_merged_alike(reference: Reference) -> None:
    for seed in range(40):
        pairs = bounds(seed)
        theirs = [tuple(pair) for pair in reference.ask("normalized", intervals=pairs)]
        in_utc = [tuple(datetime.datetime.fromtimestamp(moment, UTC) for moment in pair) for pair in pairs]
        assert exclusion_utils.normalize_intervals(in_utc) == theirs, seed
        for start, end in bounds(seed + 1000):
            seconds = reference.ask("overlap", start=start, end=end, exclusions=theirs)
            assert exclusion_utils.get_exclusion_overlap(start, end, theirs) == pytest.approx(seconds, abs=1e-9)
