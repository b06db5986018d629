"""Jobs that fail at random, simulated step by step: what happened, and what would have happened with other saves.

One job can be run again with the same failures (each attempt fails after the same uptime, each restart takes as long)
and other noise, another interval between saves, or other restart times. `payloads` has what a recorder would log.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["BASE", "Run", "SimulatedJob", "draw_job"]

BASE = 1_700_000_000.0
"""The start of each job, in seconds since 1970."""
_STEP_NOISE = 0.02
"""The relative noise of each step, and of the mean step time of each attempt."""
_RESTART_SPREAD = 0.35
"""The standard deviation of the logarithm of restart times."""
_MOST_ATTEMPTS = 10_000

Payload = dict[str, Any]


@dataclass(frozen=True)
class SimulatedJob:
    """The truth about a job. All durations are in seconds.

    Attributes:
        name: Its name.
        seed: The seed of its failures.
        steps: The number of steps to do.
        step_seconds: The mean time of a step.
        save_seconds: How long a save blocks.
        interval_steps: The steps between two saves.
        between: The mean time between failures.
        restart_seconds: The mean time from a failure to training.
        background_seconds: How long a save goes on in the background: a failure until then loses it.
    """

    name: str
    seed: int
    steps: int
    step_seconds: float
    save_seconds: float
    interval_steps: int
    between: float
    restart_seconds: float
    background_seconds: float = 0.0

    def run(
        self,
        *,
        noise_seed: int,
        interval_steps: int | None = None,
        failures_seed: int | None = None,
        restart_factor: float = 1.0,
        is_recorded: bool = False,
    ) -> Run:
        """Run the job to its end.

        Args:
            noise_seed: The seed of the step times.
            interval_steps: The steps between saves; None for the job's own.
            failures_seed: The seed of the failures; None for the job's own.
            restart_factor: Multiplies all restart times.
            is_recorded: True to make the payloads of a recorder.
        """
        every = interval_steps or self.interval_steps
        failures = self._failures(self.seed if failures_seed is None else failures_seed)
        noise = np.random.default_rng(noise_seed)
        run = Run()
        at, saved, restart = 0.0, 0, self.restart_seconds
        for _ in range(_MOST_ATTEMPTS):
            log = _Log(self.name, run.payloads, is_recorded)
            log.start(at, restart, is_first=saved == 0 and not run.failures)
            at += restart
            uptime, next_restart = next(failures)
            factor = 1 + _STEP_NOISE * noise.standard_normal()
            count = min(self.steps - saved, math.ceil(1.3 * uptime / self.step_seconds) + 10)
            times = self.step_seconds * factor * (1 + _STEP_NOISE * noise.standard_normal(count))
            saves_before = np.arange(count) // every  # Each attempt starts after a save, or with the first step.
            starts = np.concatenate(([0.0], np.cumsum(times)[:-1])) + self.save_seconds * saves_before
            done_at = starts + times
            finishes = saved + count == self.steps and done_at[-1] <= uptime
            if finishes:
                log.steps(at, saved, starts, every, self.save_seconds, until=math.inf)
                log.end(at + float(done_at[-1]))
                run.productive += float(times.sum())
                run.wall = at + float(done_at[-1])
                return run
            # A save is complete if the failure is after its end, and that of its background part.
            saved_at = done_at[every - 1 :: every] + self.save_seconds + self.background_seconds
            saves = int(np.searchsorted(saved_at, uptime, side="right"))
            log.steps(at, saved, starts, every, self.save_seconds, until=uptime)
            run.failures += 1
            run.productive += float(times[: saves * every].sum())
            saved += saves * every
            at += uptime
            restart = next_restart * restart_factor
        raise RuntimeError(f"{self.name} does not end: it makes no progress between its failures")

    def run_with_as_many(self, failures: int, *, interval_steps: int, first_seed: int, tries: int = 3000) -> Run | None:
        """Return a run with an interval and other failures, of which the job's own interval would have had as many.

        None if there was none among the tries.
        """
        for seed in range(first_seed, first_seed + tries):
            if self.run(noise_seed=seed, failures_seed=seed).failures == failures:
                return self.run(noise_seed=seed, interval_steps=interval_steps, failures_seed=seed)
        return None

    def _failures(self, seed: int) -> Iterator[tuple[float, float]]:
        """Yield the uptime of each attempt until it fails, and the restart after it."""
        rng = random.Random(seed)
        center = math.log(self.restart_seconds) - _RESTART_SPREAD**2 / 2
        while True:
            yield rng.expovariate(1 / self.between), rng.lognormvariate(center, _RESTART_SPREAD)


@dataclass
class Run:
    """The outcome of a run.

    Attributes:
        failures: The number of failures.
        productive: The time of the steps that were kept, in seconds.
        wall: The wall time, in seconds.
        payloads: The entries of a recorder, if it was recorded.
    """

    failures: int = 0
    productive: float = 0.0
    wall: float = 0.0
    payloads: list[Payload] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """The goodput in percent."""
        return 100 * self.productive / self.wall


class _Log:
    """Makes the payloads of one attempt."""

    def __init__(self, job: str, payloads: list[Payload], is_recorded: bool) -> None:
        self._job, self._payloads, self._is_recorded = job, payloads, is_recorded

    def start(self, at: float, restart: float, *, is_first: bool) -> None:
        """Add what is before the first step: after a failure, a part of the time passes before the job starts."""
        wait = 0.0 if is_first else 0.4 * restart
        start, init = at + wait, 0.3 * (restart - wait)
        self._add(job_start_time=BASE + start)
        self._pair("tpu_init", start + 0.1 * init, start + init)
        self._pair("training_prep", start + init, at + restart)

    def steps(
        self, at: float, first: int, starts: np.ndarray[Any, Any], every: int, save: float, *, until: float
    ) -> None:
        """Add the steps that start, and the saves that end, before a moment of the attempt."""
        if not self._is_recorded:
            return
        for index, start in enumerate(starts.tolist()):
            is_after_save = index > 0 and index % every == 0
            if is_after_save and start <= until:
                self._add(
                    event_type="save",
                    step=first + index - 1,
                    directory="gs://bucket/job",
                    checkpoint_manager_blocking_start_time=BASE + at + start - save,
                    checkpoint_manager_blocking_duration_secs=save,
                )
            if start > until:
                return
            self._add(step_count=first + index, step_start_time=BASE + at + start)

    def end(self, at: float) -> None:
        """Add the job's end."""
        self._add(job_end_time=BASE + at)

    def _pair(self, name: str, start: float, end: float) -> None:
        self._add(**{f"{name}_start_time": BASE + start})
        self._add(**{f"{name}_end_time": BASE + end})

    def _add(self, **keys: Any) -> None:
        if self._is_recorded:
            self._payloads.append({"job_name": self._job, **keys})


def draw_job(seed: int, least: int, most: int) -> SimulatedJob:
    """Return a random job that fails a number of times with the failures of its seed.

    Args:
        seed: The seed.
        least: The fewest failures.
        most: The most failures.
    """
    rng = random.Random(f"job {seed} {least} {most}")
    while True:
        step = rng.uniform(2.0, 12.0)
        hours = math.exp(rng.uniform(math.log(3.0), math.log(48.0)))
        expected = math.exp(rng.uniform(math.log(least), math.log(most)))
        between = 3600 * hours / expected
        save = math.exp(rng.uniform(math.log(3.0), math.log(60.0)))
        restart = math.exp(rng.uniform(math.log(120.0), math.log(900.0)))
        # What people choose: from a third of the best interval to ten times as long.
        interval = math.sqrt(2 * save * between) * math.exp(rng.uniform(math.log(0.33), math.log(10.0)))
        job = SimulatedJob(
            name=f"job-{seed}",
            seed=rng.randrange(2**31),
            steps=max(50, int(3600 * hours * 0.8 / step)),
            step_seconds=step,
            save_seconds=save,
            interval_steps=max(2, round(interval / step)),
            between=between,
            restart_seconds=restart,
        )
        try:
            failures = job.run(noise_seed=rng.randrange(2**31)).failures
        except RuntimeError:
            continue
        if least <= failures <= most:
            return job
