from __future__ import annotations

import math
import random

import pytest
from cloud_tpu_diagnostics._companion.hang_watch import HangWatch, LearnedTimeouts, RecentSteps
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.progress import Progress

from . import simulated_jobs
from .simulated_jobs import Event, SimulatedJob, verdicts

CONFIG = HangConfig(enabled=True)


@pytest.mark.parametrize("seed", range(6))
def test_a_day_of_compilations_checkpoints_evaluations_and_loading_causes_no_verdict(seed: int) -> None:
    job = simulated_jobs.day(seed)
    assert job.now > 86_400
    job.beat("ended", 3_000)
    assert verdicts(job.events, job.now, seed=seed) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_day_with_compilations_amid_steps_that_take_50_times_as_long_causes_two_verdicts(seed: int) -> None:
    job = simulated_jobs.day(seed, compilations_amid_steps=50)
    assert len(verdicts(job.events, job.now, seed=seed)) <= 2


@pytest.mark.parametrize("seed", range(4))
def test_a_hang_after_a_day_of_pauses_is_reported_by_the_longest_unannounced_one(seed: int) -> None:
    job = simulated_jobs.day(seed)
    job.steps(20)
    job.beat("step", 0.0, job.step)
    bound = max(job.step_bound(CONFIG), CONFIG.safety_factor * max(job.step_times))
    [found] = verdicts(job.events, job.now + 3 * bound, seed=seed)
    assert 0 < found.at - job.now <= bound < CONFIG.pause_floor_seconds


def test_every_one_of_200_hangs_is_reported_once_and_within_its_bound() -> None:
    for seed in range(200):
        case, found = simulated_jobs.hang(seed)
        assert len(found) == 1, seed
        assert found[0].verdict.phase == case.phase, seed
        assert found[0].at - case.job.now <= case.bound_seconds, seed
        assert found[0].verdict.stuck_seconds > 0.9 * case.bound_seconds, seed


def test_none_of_200_slow_phases_is_reported_as_a_hang() -> None:
    for seed in range(200):
        case, found = simulated_jobs.slow_phase(seed)
        assert found == [], (seed, case.phase)


# --- One hang, one verdict ----------------------------------------------------------------------------


def test_a_hang_is_reported_once_and_the_next_only_after_progress() -> None:
    job = SimulatedJob(1, 1.0)
    job.start()
    job.one_step(500.0)
    first = job.events[-1]
    job.steps(30)
    job.one_step(5_000.0)
    second = job.events[-1]
    found = verdicts(job.events, job.now)
    assert [(each.verdict.phase, each.verdict.step) for each in found] == [("step", first.step), ("step", second.step)]
    assert found[0].verdict.timeout_seconds == CONFIG.step_floor_seconds


def test_a_hang_that_continues_in_another_phase_is_also_reported_there() -> None:
    job = SimulatedJob(1, 1.0)
    job.start()
    job.one_step(100.0)
    job.beat("checkpoint", 1_000.0)
    assert [each.verdict.phase for each in verdicts(job.events, job.now)] == ["step", "checkpoint"]


@pytest.mark.parametrize(
    ("phase", "floor"),
    [
        ("init", 1_800),
        ("compile", 1_800),
        ("step", 1_800),
        ("checkpoint", 600),
        ("eval", 600),
        ("data", 600),
        ("other", 600),
    ],
)
def test_the_first_phase_has_its_minimum_timeout(phase: str, floor: float) -> None:
    events = [Event(10.0, phase, 0)]
    assert verdicts(events, 10.0 + 0.95 * floor) == []
    [found] = verdicts(events, 10.0 + 3 * floor)
    assert found.at <= 10.0 + floor
    assert found.verdict.timeout_seconds == floor


@pytest.mark.parametrize("phase", ["wait", "ended"])
def test_a_job_that_waits_for_slices_or_has_ended_never_hangs(phase: str) -> None:
    job = SimulatedJob(1, 1.0)
    job.start()
    job.beat(phase, 100_000.0)
    assert verdicts(job.events, job.now) == []


def test_a_job_without_a_heartbeat_never_hangs() -> None:
    watch = HangWatch(CONFIG)
    assert all(watch.observe(None, second * 10**9) is None for second in range(10_000))


# --- What is learned ----------------------------------------------------------------------------------


def test_steps_that_take_longer_have_a_longer_timeout() -> None:
    job = SimulatedJob(3, 40.0, jitter=0.0)
    job.start()
    job.one_step(119.0)
    job.steps(200)
    job.one_step(1_000.0)
    last_beat = job.events[-1].at
    [found] = verdicts(job.events, job.now)
    # By the 99th percentile of the rest: a single step that took longer changes nothing.
    assert found.verdict.timeout_seconds == pytest.approx(3 * 40.0)
    assert found.at - last_beat <= 3 * 40.0


@pytest.mark.parametrize("stall_seconds", [25.0, 45.0, 300.0, 20_000.0])
@pytest.mark.parametrize("steps_after", [5, 500])
def test_a_stall_that_passed_does_not_delay_the_next_verdict(stall_seconds: float, steps_after: int) -> None:
    job = SimulatedJob(3, 1.0)
    job.start()
    job.steps(200)
    job.one_step(stall_seconds)
    job.steps(steps_after)
    job.one_step(5_000.0)
    last_beat = job.events[-1].at
    last = verdicts(job.events, job.now)[-1]
    assert 0 < last.at - last_beat <= job.step_bound(CONFIG) == CONFIG.step_floor_seconds


@pytest.mark.parametrize(("steps_before", "stall_seconds"), [(5, 300.0), (30, 28.0), (30, 300.0)])
def test_a_stall_among_the_first_steps_does_not_delay_the_next_verdict(steps_before: int, stall_seconds: float) -> None:
    job = SimulatedJob(3, 1.0)
    job.beat("init", 60.0)
    job.steps(steps_before)
    job.one_step(stall_seconds)
    job.steps(10)
    job.one_step(5_000.0)
    last_beat = job.events[-1].at
    last = verdicts(job.events, job.now)[-1]
    assert 0 < last.at - last_beat <= CONFIG.step_floor_seconds


def test_step_times_are_learned_although_the_first_steps_were_only_dispatched() -> None:
    job = SimulatedJob(3, 40.0)
    for _ in range(6):
        job.one_step(0.01)
    job.steps(50)
    assert verdicts(job.events, job.now) == []


@pytest.mark.parametrize(
    ("step_seconds", "every", "pause_seconds"),
    [
        (3.0, 1_000, 60.0),
        (10.0, 50, 150.0),
        (60.0, 1_000, 1_100.0),  # Less than twice a day.
    ],
)
def test_unannounced_pauses_cause_two_verdicts_and_then_none_for_days(
    step_seconds: float, every: int, pause_seconds: float
) -> None:
    job = SimulatedJob(4, step_seconds)
    job.start()
    while job.now < 2.5 * 86_400:
        job.steps(every)
        job.one_step(pause_seconds)
    found = verdicts(job.events, job.now)
    assert [each.verdict.step for each in found] == [22 + every, 23 + 2 * every]


def test_one_longer_stall_among_recurring_pauses_does_not_delay_the_next_verdict() -> None:
    job = SimulatedJob(4, 1.0)
    job.start()
    for seconds in (60.0, 60.0, 60.0, 500.0, 60.0):
        job.steps(300)
        job.one_step(seconds)
    job.one_step(5_000.0)
    found = [(each.verdict.step, each.verdict.timeout_seconds) for each in verdicts(job.events, job.now)]
    assert [seconds for _, seconds in found] == [
        30.0,
        30.0,
        pytest.approx(180.0, rel=0.01),
        pytest.approx(180, rel=0.01),
    ]


def test_recurring_pauses_raise_the_timeout_up_to_its_limits() -> None:
    for pause, widened in ((50.0, 150.0), (300.0, 600.0), (500.0, 750.0), (1_500.0, 1_800.0), (50_000.0, 1_800.0)):
        timeouts = LearnedTimeouts(CONFIG)
        for second in range(100):
            timeouts.add_steps(1, 1.0, 1.0, second)
        for second in (200.0, 300.0):  # type: ignore[assignment]
            timeouts.add_steps(1, pause, pause, second)
        assert timeouts.timeout_seconds("step", 400.0) == widened


def test_pauses_are_forgotten_a_day_after_they_happened_twice_within_a_day() -> None:
    timeouts = LearnedTimeouts(CONFIG)
    for second in range(100):
        timeouts.add_steps(1, 1.0, 1.0, second)
    timeouts.add_steps(1, 50.0, 50.0, 200.0)
    assert timeouts.timeout_seconds("step", 300.0) == CONFIG.step_floor_seconds
    timeouts.add_steps(1, 50.0, 50.0, 90_000.0)  # Not within a day.
    assert timeouts.timeout_seconds("step", 90_100.0) == CONFIG.step_floor_seconds
    timeouts.add_steps(1, 50.0, 50.0, 100_000.0)
    assert timeouts.timeout_seconds("step", 100_000.0 + 86_000.0) == 150.0
    assert timeouts.timeout_seconds("step", 100_000.0 + 87_000.0) == CONFIG.step_floor_seconds


def test_hangs_after_an_outage_are_still_reported() -> None:
    job = SimulatedJob(5, 1.0)
    job.start()
    job.one_step(20_000.0)
    job.steps(50)
    job.beat("checkpoint", 20_000.0)
    job.steps(50)
    job.beat("checkpoint", 20_000.0)
    job.steps(50)
    job.one_step(20_000.0)
    timeouts = [(each.verdict.phase, each.verdict.timeout_seconds) for each in verdicts(job.events, job.now)]
    assert timeouts == [("step", 30), ("checkpoint", 600), ("checkpoint", 1_800), ("step", 30)]


def test_the_timeout_of_a_phase_is_learned_from_its_longest_silence() -> None:
    job = SimulatedJob(6, 1.0)
    job.start()
    for seconds in (100, 500, 300):
        job.beat("checkpoint", seconds)
        job.steps(5)
    job.beat("eval", 10_000)
    job.steps(5)
    job.beat("checkpoint", 10_000)
    found = [(each.verdict.phase, each.verdict.timeout_seconds) for each in verdicts(job.events, job.now)]
    assert found == [("eval", 600), ("checkpoint", pytest.approx(1_500, rel=0.01))]


def test_steps_after_a_new_initialisation_are_learned_from_scratch() -> None:
    job = SimulatedJob(7, 0.5)
    job.start()
    job.steps(1_000)
    job.beat("init", 100)
    job.one_step(900)
    job.step_seconds = 25.0  # On fewer slices.
    job.jitter = 0.3
    job.steps(300)
    assert verdicts(job.events, job.now) == []


def test_steps_without_numbers_are_learned_from_the_rate_of_heartbeats() -> None:
    job = SimulatedJob(8, 15.0)
    job.start()
    job.steps(100)
    events = [event._replace(step=None) for event in job.events]
    [found] = verdicts(events, job.now + 1_000)
    assert found.verdict.timeout_seconds == pytest.approx(45, rel=0.2)
    assert found.verdict.step is None


def test_time_in_other_phases_is_not_part_of_a_step() -> None:
    job = SimulatedJob(9, 15.0, jitter=0.0)
    job.start()
    for _ in range(100):
        job.steps(1)
        job.beat("data", 40.0, job.step)
    job.one_step(1_000.0)
    [found] = verdicts(job.events, job.now)
    assert found.verdict.timeout_seconds == pytest.approx(45)


def test_many_steps_between_two_checks_are_counted_each() -> None:
    job = SimulatedJob(10, 0.01, jitter=0.0)
    job.start()
    for _ in range(10):
        job.steps(500)
        job.one_step(19.0)  # One in 500: not the 99th percentile.
    job.one_step(1_000.0)
    [found] = verdicts(job.events, job.now)
    assert found.verdict.timeout_seconds == CONFIG.step_floor_seconds


# --- A watch that missed checks -------------------------------------------------------------------------


def test_a_pause_of_the_machine_causes_no_verdict_and_is_not_learned() -> None:
    watch = HangWatch(CONFIG)
    now = 0
    for step in range(2_000):
        now += 10_000 * 10**9 if step % 100 == 99 else 10**9
        assert watch.observe(Progress(step + 1, now - 10**8, "step", step), now) is None
    for _ in range(20):
        now += 10**9
        assert watch.observe(Progress(2_000, now - 10**8, "step", 1_999)._replace(monotonic_ns=1), now) is None
    assert watch.timeout_seconds("step", now) == CONFIG.step_floor_seconds


def test_a_pause_of_the_machine_amid_a_step_does_not_count_as_silence() -> None:
    watch = HangWatch(CONFIG)
    seconds = [*range(40), *range(50_000, 50_060)]
    found = []
    for second in seconds:
        step = min(second, 30)
        if watch.observe(Progress(step + 1, step * 10**9, "step", step), second * 10**9) is not None:
            found.append(second)
    [at] = found
    assert 50_010 < at < 50_025


def test_a_watch_that_is_always_late_still_reports_a_hang() -> None:
    watch = HangWatch(CONFIG)
    stuck = Progress(1, 0, "checkpoint", 5)
    assert sum(watch.observe(stuck, second * 10**9) is not None for second in range(0, 10_000, 10)) == 1


# --- Whatever a job does ------------------------------------------------------------------------------

PAUSES = st.tuples(st.sampled_from(["checkpoint", "eval", "data", "other"]), st.floats(0, 590))
STARTS = st.tuples(st.sampled_from(["init", "compile"]), st.floats(0, 1_700))
STEPS = st.tuples(st.just("step"), st.floats(0, 28))
HISTORIES = st.lists(st.one_of(PAUSES, STARTS, STEPS, STEPS, STEPS), max_size=60)


def _job(history: list[tuple[str, float]], counted: bool) -> SimulatedJob:
    job = SimulatedJob(0, 1.0)
    for phase, seconds in history:
        if phase == "step":
            job.step += 1
        job.beat(phase, seconds, job.step if counted else None)
    return job


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.booleans(), st.integers(0, 100))
def test_silence_below_the_floor_is_never_a_hang(history: list[tuple[str, float]], counted: bool, seed: int) -> None:
    job = _job(history, counted)
    assert verdicts(job.events, job.now, seed=seed) == []


@settings(max_examples=40, deadline=None)
@given(HISTORIES.filter(bool), st.booleans(), st.integers(0, 100))
def test_every_job_without_further_progress_is_reported_once(
    history: list[tuple[str, float]], counted: bool, seed: int
) -> None:
    job = _job(history, counted)
    job.now = job.events[-1].at
    bound = max(1_800.0, 3 * max(seconds for _, seconds in history))
    [found] = verdicts(job.events, job.now + 1.2 * bound, seed=seed)
    assert found.at <= job.now + bound


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(1, 50))
def test_the_percentile_is_that_of_the_last_steps(values: list[float], most: int) -> None:
    steps = RecentSteps(most)
    for value in values:
        steps.add(value)
    recent = sorted(values[-most:])
    assert len(steps) == len(recent)
    assert steps.percentile(0.99) == recent[math.ceil(0.99 * len(recent)) - 1]
    assert steps.percentile(0.5) == recent[math.ceil(0.5 * len(recent)) - 1]


def test_a_job_that_repeats_the_same_step_makes_progress_but_no_step() -> None:
    watch = HangWatch(CONFIG)
    job = random.Random(11)
    sequence = 0
    for second in range(0, 3_000, 1):
        sequence += job.randint(1, 3)
        assert watch.observe(Progress(sequence, second * 10**9, "step", second // 100), second * 10**9) is None
    assert watch.timeout_seconds("step", 3_000 * 10**9) == pytest.approx(300)


# --- What the next process of the job knows ---


def _train(watch: HangWatch, steps: int = 20, start: int = 0) -> int:
    """Do steps of a second, checked each second; return the start of the last one."""
    for step in range(steps):
        now_ns = (start + step) * 10**9
        assert watch.observe(Progress(step + 1, now_ns, "step", step), now_ns) is None
    return start + steps - 1


def _silence(watch: HangWatch, progress: Progress, since: int, most: int) -> int | None:
    """Return after how many seconds of silence there is a verdict; None if there is none."""
    for second in range(1, most):
        if watch.observe(progress, (since + second) * 10**9):
            return second
    return None


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_pause_that_ended_the_job_passes_within_a_few_attempts_however_long_it_is(factor: float) -> None:
    config = HangConfig(enabled=True, abort=True, safety_factor=factor)
    for pause in (40, 80, 1_000, 3_600):
        known: dict[str, tuple[float, float]] = {}
        aborts = 0
        while aborts < 20:
            watch = HangWatch(config, inherit=known.copy)
            last = _train(watch)
            ended = _silence(watch, Progress(20, last * 10**9, "step", 19), last, pause)
            if ended is None:
                break
            watch.add_abort("step", (last + ended) * 10**9)
            known = dict(watch.learned((last + ended) * 10**9))
            aborts += 1
        assert 0 < aborts < 15


def test_a_job_that_hangs_in_each_attempt_is_ended_within_hours() -> None:
    known: dict[str, tuple[float, float]] = {}
    ended = 0
    for _ in range(12):
        watch = HangWatch(HangConfig(enabled=True, abort=True), inherit=known.copy)
        last = _train(watch)
        ended = _silence(watch, Progress(20, last * 10**9, "step", 19), last, 30_000) or 0
        assert ended
        watch.add_abort("step", (last + ended) * 10**9)
        known = dict(watch.learned((last + ended) * 10**9))
    assert ended < 6 * 3600 + 5


def test_an_announced_pause_that_ended_the_job_passes_in_the_next_attempt() -> None:
    config = HangConfig(enabled=True, abort=True)
    first = HangWatch(config)
    last = _train(first)
    evaluation = Progress(30, (last + 1) * 10**9, "eval", 19)
    ended = _silence(first, evaluation, last, 1_500)
    assert ended is not None
    first.add_abort("eval", (last + ended) * 10**9)
    learned = dict(first.learned((last + ended) * 10**9))
    assert list(learned) == ["eval"]
    second = HangWatch(config, inherit=lambda: learned)
    assert _silence(second, evaluation, _train(second), 1_500) is None


def test_an_inherited_pause_counts_for_a_week_and_is_not_saved_again() -> None:
    old = HangWatch(HangConfig(enabled=True), inherit=lambda: {"step": (300.0, 8 * 86_400.0)})
    last = _train(old)
    assert _silence(old, Progress(20, last * 10**9, "step", 19), last, 60) is not None
    assert dict(old.learned(last * 10**9)) == {}


def test_time_in_which_the_job_was_stopped_does_not_count_and_is_not_learned() -> None:
    watch = HangWatch(HangConfig(enabled=True))
    last = _train(watch)
    progress = Progress(20, last * 10**9, "step", 19)
    for second in range(1, 10_000):
        assert watch.observe(progress, (last + second) * 10**9, is_stopped=True) is None
    resumed = last + 9_999
    before = watch.timeout_seconds("step", resumed * 10**9)
    assert watch.observe(Progress(21, (resumed + 1) * 10**9, "step", 20), (resumed + 1) * 10**9) is None
    assert watch.observe(Progress(22, (resumed + 2) * 10**9, "step", 21), (resumed + 2) * 10**9) is None
    assert watch.timeout_seconds("step", resumed * 10**9) == before
    hung = _silence(watch, Progress(22, (resumed + 2) * 10**9, "step", 21), resumed + 2, 60)
    assert hung is not None


def test_a_verdict_on_a_job_that_is_stopped_then_is_retracted() -> None:
    watch = HangWatch(HangConfig(enabled=True))
    last = _train(watch)
    progress = Progress(20, last * 10**9, "step", 19)
    first = _silence(watch, progress, last, 60)
    assert first is not None
    watch.retract()
    again = _silence(watch, progress, last + first, 60)
    assert again is not None
    assert abs(again - first) <= 2
