"""Jobs that send heartbeats on a clock of their own, and hang detection that checks them every second of it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cloud_tpu_diagnostics._companion.hang_watch import OBSERVATION_SECONDS, HangWatch
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, Verdict
from ml_diagnostics_common.progress import Progress


class Event(NamedTuple):
    """A heartbeat at some second."""

    at: float
    phase: str
    step: int | None


class Report(NamedTuple):
    """A verdict at some second."""

    at: float
    verdict: Verdict


class SimulatedJob:
    """Records the heartbeats of a job."""

    def __init__(self, seed: int, step_seconds: float, jitter: float = 0.03) -> None:
        self.random = random.Random(seed)
        self.step_seconds = step_seconds
        self.jitter = jitter
        self.now = 0.0
        self.step = 0
        self.events: list[Event] = []
        self.step_times: list[float] = []

    def beat(self, phase: str, seconds: float, step: int | None = None) -> None:
        """Send a heartbeat, and then none for so long."""
        self.events.append(Event(self.now, phase, step))
        self.now += seconds

    def start(self, init_seconds: float = 60.0, compile_seconds: float = 90.0) -> None:
        """Initialise, compile in the first two steps, and do a few more steps."""
        self.beat("init", init_seconds)
        self.beat("compile", 1.0)
        self.one_step(compile_seconds)
        self.one_step(compile_seconds / 3)
        self.step_times.clear()
        self.steps(20)

    def one_step(self, seconds: float) -> None:
        self.beat("step", seconds, self.step)
        self.step += 1
        self.step_times.append(seconds)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.one_step(self.step_seconds * math.exp(self.random.gauss(0, self.jitter)))

    def step_bound(self, config: HangConfig) -> float:
        """Return the bound: the factor times the 99th percentile of the last 1,000 step times, at least the floor."""
        recent = sorted(self.step_times[-1_000:])
        percentile = recent[math.ceil(0.99 * len(recent)) - 1]
        return max(config.safety_factor * percentile, config.step_floor_seconds)


def checks(events: Sequence[Event], until: float, seed: int = 0) -> Iterator[tuple[Progress | None, int]]:
    """Yield the progress at each check, every second or sometimes a little later, and its time."""
    jitter = random.Random(seed)
    progress, sequence, now = None, 0, jitter.random()
    next_at = events[0].at if events else math.inf
    while now <= until:
        if next_at <= now:
            while sequence < len(events) and events[sequence].at <= now:
                sequence += 1
            event = events[sequence - 1]
            progress = Progress(sequence, round(event.at * 1e9), event.phase, event.step)
            next_at = events[sequence].at if sequence < len(events) else math.inf
        yield progress, round(now * 1e9)
        now += OBSERVATION_SECONDS + (jitter.random() * 0.02 if jitter.random() < 0.9 else jitter.random() * 0.3)


def verdicts(events: Sequence[Event], until: float, config: HangConfig | None = None, seed: int = 0) -> list[Report]:
    """Return all verdicts up to some second."""
    watch = HangWatch(config or HangConfig(enabled=True))
    reports = []
    for progress, now_ns in checks(events, until, seed):
        verdict = watch.observe(progress, now_ns)
        if verdict is not None:
            reports.append(Report(now_ns / 1e9, verdict))
    return reports


# --- Whole days, hangs and slow phases ----------------------------------------------------------------


def day(seed: int, compilations_amid_steps: float | None = None) -> SimulatedJob:
    """Return a day of training without a hang, with everything that resembles one.

    A first pause above the bound has to be reported as a hang. So a compilation amid steps takes
    as long as `compilations_amid_steps` steps; by default as long as 50 where that is under 30 s, else as 2.4.
    """
    draw = random.Random(seed)
    job = SimulatedJob(seed, step_seconds=math.exp(draw.uniform(math.log(0.2), math.log(15))), jitter=0.05)
    job.start(init_seconds=draw.uniform(20, 900), compile_seconds=draw.uniform(20, 1_000))
    recompilation = (compilations_amid_steps or (50 if job.step_seconds < 0.55 else 2.4)) * job.step_seconds
    # An evaluation every so many steps, which on every other day takes ever longer, up to three times as long.
    unannounced = shortest = max(18.0, 2.2 * job.step_seconds)
    growth = 1.01 if seed % 2 else 1.0
    every = draw.randint(100, 400)
    while job.now < 86_400:
        job.steps(every)
        job.one_step(unannounced)
        unannounced = min(unannounced * growth, 3 * shortest)
        chance = draw.random()
        if chance < 0.25:
            job.beat("checkpoint", draw.uniform(5, 550), job.step)
        elif chance < 0.45:
            job.beat("eval", draw.uniform(5, 550), job.step)
        elif chance < 0.65:
            job.beat("data", draw.uniform(0.5, 300), job.step)
        elif chance < 0.75:
            job.one_step(recompilation)
        elif chance < 0.8:
            job.beat("compile", draw.uniform(10, 1_200), job.step)
        elif chance < 0.82:
            job.beat("wait", draw.uniform(10, 4_000), job.step)
            job.beat("init", draw.uniform(10, 600), job.step)
    return job


class Case(NamedTuple):
    """A job up to its hang or slow phase, and the bound of its detection."""

    job: SimulatedJob
    phase: str
    bound_seconds: float


def case(seed: int) -> Case:
    """Return a job at any time of its life: mostly in a step, else in an announced phase, or at its very first step."""
    config = HangConfig(enabled=True)
    draw = random.Random(seed)
    job = SimulatedJob(seed, math.exp(draw.uniform(math.log(0.05), math.log(40))), jitter=draw.uniform(0.01, 0.15))
    phase = draw.choice(("step",) * 8 + ("checkpoint", "eval", "data", "first step"))
    if phase == "first step":
        job.beat("init", draw.uniform(1, 600))
        job.beat("step", 0.0, 0)
        return Case(job, "compile", config.startup_floor_seconds)
    job.start(draw.uniform(1, 600), draw.uniform(1, 600))
    longest = 0.0
    for _ in range(draw.randint(1, 4)):
        job.steps(draw.randint(20, 150))
        seconds = draw.uniform(1, 590)
        longest = max(longest, seconds)
        job.beat(phase if phase != "step" else draw.choice(("checkpoint", "eval", "data")), seconds, job.step)
    job.steps(draw.randint(2, 150))
    if phase == "step":
        job.beat("step", 0.0, job.step)
        return Case(job, phase, job.step_bound(config))
    job.beat(phase, 0.0, job.step)
    return Case(job, phase, max(config.pause_floor_seconds, config.safety_factor * longest))


def hang(seed: int) -> tuple[Case, list[Report]]:
    """Return a job that hangs, and the verdicts until long after."""
    found = case(seed)
    return found, verdicts(found.job.events, found.job.now + 3 * found.bound_seconds, seed=seed)


def slow_phase(seed: int) -> tuple[Case, list[Report]]:
    """Return a job that pauses for up to 95 % of its bound and continues, and the verdicts."""
    found = case(seed)
    found.job.now += found.bound_seconds * random.Random(seed).uniform(0.5, 0.95)
    found.job.step += 1
    found.job.steps(50)
    return found, verdicts(found.job.events, found.job.now, seed=seed)
