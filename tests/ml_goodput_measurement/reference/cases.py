"""Generated lives of jobs for the differential test, and what the reference gets wrong about each of them.

A kind of life that touches a documented difference keeps the books itself: `moves` are the seconds by which the
reference's buckets must be corrected, worked out while the life is generated, from the contract's line and nothing
else. A kind without moves must equal the reference.

All moments are multiples of 1/64 s, which floats and microseconds both hold exactly; step lengths are multiples of
1/32 s, so that their median is a moment too.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ..histories import History, Payload

TICK = 1 / 64


@dataclass
class Case:
    """A life, and the corrections to the reference's answer."""

    history: History
    now: float
    """Seconds after the histories' base."""
    moves: dict[str, float]
    disruptions: int = 0
    """The number of disruptions that the reference does not see."""
    delivered: list[Payload] = field(default_factory=list)
    """The payloads for our library; the reference reads the history itself."""
    has_ideal: bool = True
    """True if the reference's ideal step time and deviations are right."""


@dataclass
class Attempt:
    """The steps of a generated attempt."""

    started: float
    init_seconds: float
    prepare_seconds: float
    steps: dict[int, float]
    """The start of each."""
    loads: list[float]
    """Length of each data load; the first was before the first step."""

    @property
    def last_step(self) -> int:
        return max(self.steps)

    @property
    def last_at(self) -> float:
        return self.steps[self.last_step]

    @property
    def median(self) -> float:
        """The median time of the steps that the next number follows; a generated attempt always has one."""
        return statistics.median(
            self.steps[number + 1] - at for number, at in self.steps.items() if number + 1 in self.steps
        )


class Life:
    """A job's life, which is written attempt by attempt; `at` is the present."""

    def __init__(self, seed: int, *, scale: float = 1.0) -> None:
        self.rng = random.Random(seed)
        self.job = History()
        self.at = 0.0
        self.scale = scale
        self.loads = self.rng.random() < 0.7
        self.moves: dict[str, float] = defaultdict(float)
        self.disruptions = 0
        self.restores = 0
        """Numbers restores, for the reference takes two restores of one step as one."""

    def seconds(self, low: float, high: float) -> float:
        return self.rng.randint(round(low / TICK), round(high / TICK)) * TICK

    def attempt(
        self,
        first: int,
        count: int,
        *,
        slow_start: bool = False,
        customs: bool = False,
        gaps: bool = False,
    ) -> Attempt:
        """An attempt up to the start of its last step."""
        attempt = self.start()
        if self.rng.random() < 0.5:
            length = self.seconds(1, 9)
            self.restores += 1
            self.job.restore(self.restores, self.at, self.at + length)
            self.at += length + self.seconds(0, 2)
        self._load_before(attempt, self.at + self.seconds(0.5, 2))
        ideal = self.seconds(2, 20)
        number = first
        for index in range(count):
            attempt.steps[number] = self.at
            self.job.step(number, self.at)
            if index == count - 1:
                break
            length = ideal + self.seconds(-0.25, 0.25)
            if index == 0:
                length = ideal + self.seconds(5, 40) if slow_start else ideal / 2
            length = _on_grid(length * self.scale / 2) * 2
            if customs and self.rng.random() < 0.3:
                self._custom_inside(self.at, length)
            self._load_before(attempt, self.at + length)
            skips = gaps and index < count - 2 and self.rng.random() < 0.2
            number += self.rng.randint(2, 4) if skips else 1
        return attempt

    def start(self) -> Attempt:
        """Job start, initialisation and preparation."""
        attempt = Attempt(self.at, self.seconds(1, 30), self.seconds(1, 9), {}, [])
        self.job.start(self.at)
        self.at += self.seconds(0, 2)
        self.job.init(self.at, self.at + attempt.init_seconds)
        self.at += attempt.init_seconds + self.seconds(0, 1)
        self.job.prepare(self.at, self.at + attempt.prepare_seconds)
        self.at += attempt.prepare_seconds + self.seconds(0, 1)
        return attempt

    def crash(self, attempt: Attempt) -> float:
        """The job falls silent in its last step; returns how long that step is taken to have lasted."""
        silence = self.seconds(0.25, 400)
        self.at += silence
        return min(attempt.median, silence)

    def finish(self, attempt: Attempt) -> float:
        """The last step ends no later than its median, and the job with it; returns how long it lasted."""
        length = _on_grid(attempt.median * self.rng.choice([0.25, 0.5, 1]))
        self.at += length
        self.job.end(self.at)
        return length

    def save_inside(self, number: int, at: float, length: float) -> float:
        """One or more hosts report a save that lies inside a step; returns how long it blocked, by the mean."""
        hosts = [_on_grid(length) + 2 * host * TICK for host in range(self.rng.choice([1, 1, 2, 4]))]
        for blocked in hosts:
            self.job.save(number, at, at + blocked)
        return statistics.mean(hosts)

    def case(self) -> Case:
        return Case(self.job, self.at, dict(self.moves), self.disruptions, list(self.job.payloads))

    def _load_before(self, attempt: Attempt, at: float) -> None:
        if self.loads:
            length = _on_grid(self.seconds(0.125, 0.375) * self.scale)
            self.job.load(at - length, at)
            attempt.loads.append(length)
        self.at = at

    def _custom_inside(self, at: float, length: float) -> None:
        kind = self.rng.choice(["eval", "sdc scan", "Eval"])
        self.job.custom(at + _on_grid(length / 4), at + _on_grid(length / 2), kind)


def plain(seed: int) -> Case:
    """One attempt, slow to start, with custom events inside its steps and data loads."""
    life = Life(seed)
    attempt = life.attempt(life.rng.choice([0, 0, 1, 100]), life.rng.randint(3, 30), slow_start=True, customs=True)
    life.finish(attempt)
    return life.case()


def saves(seed: int) -> Case:
    """One attempt that saves, several hosts reporting, to a bucket and to a disk."""
    life = Life(seed)
    attempt = life.attempt(0, life.rng.randint(6, 30))
    for number in range(1, attempt.last_step, 3):
        life.save_inside(number, attempt.steps[number], attempt.median / 8)
        life.job.save(number, attempt.steps[number + 1] - 0.5, attempt.steps[number + 1], "/local/checkpoints")
    life.finish(attempt)
    return life.case()


def gaps_in_numbers(seed: int) -> Case:
    """Step numbers are missing: the end of the step before such a gap is unknown."""
    life = Life(seed)
    attempt = life.attempt(0, life.rng.randint(5, 30), gaps=True, slow_start=bool(seed % 2))
    life.finish(attempt)
    return life.case()


def running(seed: int) -> Case:
    """The job runs; its last step is not done."""
    life = Life(seed)
    life.attempt(0, life.rng.randint(3, 30), slow_start=True, customs=True)
    life.at += life.seconds(0, 100)
    return life.case()


def late_and_twice(seed: int) -> Case:
    """B11: our library gets the entries in any order, and some of them twice."""
    case = plain(seed)
    rng = random.Random(seed)
    case.delivered += rng.sample(case.delivered, len(case.delivered) // 4)
    rng.shuffle(case.delivered)
    return case


def short_steps(seed: int) -> Case:
    """B18: steps shorter than a second; the reference has no ideal step time for them."""
    life = Life(seed, scale=1 / 16)
    life.finish(life.attempt(0, life.rng.randint(3, 30)))
    case = life.case()
    case.has_ideal = False
    return case


def rollback(seed: int) -> Case:
    """4.1 line 3: the step in which the job crashed is wasted, if it is repeated. B13: one data load an attempt."""
    life = Life(seed)
    lost = life.attempt(0, life.rng.randint(6, 20), slow_start=True, customs=True)
    for _ in range(life.rng.randint(1, 2)):
        estimate = life.crash(lost)
        resumed = life.rng.randint(min(lost.steps) + 1, lost.last_step)
        lost = life.attempt(resumed, life.rng.randint(6, 20), slow_start=True, customs=True)
        _correct_rollback(life, lost, estimate)
    life.finish(lost)
    return life.case()


def restart_from_zero(seed: int) -> Case:
    """B6, 4.1 line 2: all steps of the first attempt are wasted; none for the reference."""
    life = Life(seed)
    lost = life.attempt(0, life.rng.randint(4, 20), customs=True)
    estimate = life.crash(lost)
    again = life.attempt(0, life.rng.randint(4, 20), slow_start=True)
    _correct_rollback(life, again, estimate)
    life.moves["WASTED_PROGRESS_FROM_DISRUPTION"] += lost.last_at - lost.steps[0]
    life.finish(again)
    return life.case()


def exact_resume(seed: int) -> Case:
    """B3, 4.1 line 1: resumed at the next step; the outage is recovery, where the reference calls it productive."""
    life = Life(seed)
    lost = life.attempt(0, life.rng.randint(4, 20))
    estimate = life.crash(lost)
    _resume_exactly(life, lost, estimate)
    return life.case()


def resumed_after_end(seed: int) -> Case:
    """B7, 4.1 line 6: a job end was recorded, and the job went on."""
    life = Life(seed)
    ended = life.attempt(0, life.rng.randint(4, 20))
    length = life.finish(ended)
    life.at += life.seconds(1, 400)
    _resume_exactly(life, ended, length)
    return life.case()


def crash_loop(seed: int) -> Case:
    """B12, 4.1 line 5: attempts that fail while they initialise are recovery, and nothing else too."""
    life = Life(seed)
    lost = life.attempt(0, life.rng.randint(6, 20), slow_start=True)
    estimate = life.crash(lost)
    for _ in range(life.rng.randint(1, 3)):
        failed = life.start()
        life.at += life.seconds(1, 60)
        life.moves["TPU_INITIALIZATION"] -= failed.init_seconds
        life.moves["TRAINING_PREP"] -= failed.prepare_seconds
    back = life.attempt(life.rng.randint(1, lost.last_step), life.rng.randint(6, 20), slow_start=True)
    _correct_rollback(life, back, estimate)
    life.finish(back)
    return life.case()


def saves_in_lost_work(seed: int) -> Case:
    """B12: a save in a step that is lost is lost with it; and one that is made again counts by itself (3.10)."""
    life = Life(seed)
    lost = life.attempt(0, life.rng.randint(8, 20))
    resumed = life.rng.randint(2, lost.last_step - 1)
    kept, groups = 0.0, defaultdict(list)
    for number in (life.rng.randint(1, resumed - 1), life.rng.randint(resumed, lost.last_step - 1)):
        blocked = life.save_inside(number, lost.steps[number], lost.median / 8)
        groups[number].append(blocked)
        kept += blocked if number < resumed else 0.0
    estimate = life.crash(lost)
    back = life.attempt(resumed, lost.last_step - resumed + 5)
    _correct_rollback(life, back, estimate)
    life.finish(back)
    wrong = sum(statistics.mean(group) for group in groups.values())
    life.moves["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] += kept - wrong
    life.moves["PRODUCTIVE"] -= kept - wrong
    return life.case()


def customs_anywhere(seed: int) -> Case:
    """3.10: a custom event counts before the first step, across step records, and in the last step."""
    life = Life(seed)
    attempt = life.attempt(0, life.rng.randint(6, 20))
    life.job.custom(attempt.steps[0] - 0.5, attempt.steps[0] - 0.4375, "warm up")
    life.moves["CUSTOM_BADPUT_EVENTS.WARM UP"] += 0.0625

    number = life.rng.randint(1, attempt.last_step - 2)
    first, last = attempt.steps[number] + 0.5, attempt.steps[number + 1] + 0.5
    life.job.custom(first, last, "across")
    life.moves["CUSTOM_BADPUT_EVENTS.ACROSS"] += last - first
    life.moves["PRODUCTIVE"] -= last - first

    started_at = life.at
    length = life.finish(attempt)
    first, last = started_at + _on_grid(length / 4), started_at + _on_grid(length / 2)
    life.job.custom(first, last, "at the end")
    life.moves["CUSTOM_BADPUT_EVENTS.AT THE END"] += last - first
    life.moves["PRODUCTIVE"] -= started_at + length - first  # the step ended no later than the next event started
    return life.case()


SAME: dict[str, Callable[[int], Case]] = {
    kind.__name__: kind for kind in (plain, saves, gaps_in_numbers, running, late_and_twice, short_steps)
}
"""Kinds of life about which the reference is right."""

CORRECTED: dict[str, Callable[[int], Case]] = {
    kind.__name__: kind
    for kind in (
        rollback,
        restart_from_zero,
        exact_resume,
        resumed_after_end,
        crash_loop,
        saves_in_lost_work,
        customs_anywhere,
    )
}
"""Kinds of life with one documented error of the reference.

Not generated, because its answer is an error or cannot be corrected by a line of arithmetic: a second rollback below
the first (4.1 line 4), a job without a recorded start (4.1 line 9), a resumed job without another recorded end (B7),
duplicates given to the reference (B11), malformed saves (B8), elastic waits (B12). Each is a worked truth.
"""


def _correct_rollback(life: Life, back: Attempt, estimate: float) -> None:
    life.moves["WASTED_PROGRESS_FROM_DISRUPTION"] += estimate
    life.moves["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] -= estimate
    if back.loads:
        life.moves["DATA_LOADING_SYNC"] -= back.loads[1]
        life.moves["DATA_LOADING_ASYNC"] += back.loads[1]


def _resume_exactly(life: Life, before: Attempt, last_step_seconds: float) -> None:
    after = life.attempt(before.last_step + 1, life.rng.randint(4, 20))
    outage = after.steps[before.last_step + 1] - before.last_at
    life.moves["PRODUCTIVE"] -= outage - last_step_seconds
    life.moves["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] += after.started - before.last_at - last_step_seconds
    if after.loads:
        life.moves["DATA_LOADING_SYNC"] += after.loads[0]
        life.moves["DATA_LOADING_ASYNC"] -= after.loads[0]
    life.disruptions += 1
    life.finish(after)


def _on_grid(seconds: float) -> float:
    return max(TICK, round(seconds / TICK) * TICK)
