"""Steps of one process in blocks, by turns with something on and off: how far they differ, and how far noise does."""

from __future__ import annotations

import abc
import contextlib
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import process
from benchmarks.results import Row, seconds

RESAMPLES = 1000
_LONGEST_WAIT_SECONDS = 60.0
_SETTLE_STEPS = 100

Times = tuple[float, float]
"""Wall and CPU seconds of a step."""


class Trainer(abc.ABC):
    """Makes steps, one after the other, and times each.

    Attributes:
        step: The number of steps so far.
    """

    def __init__(self) -> None:
        self.step = 0

    @abc.abstractmethod
    def do(self, step: int) -> None:
        """Make one step."""

    def steps(self, count: int) -> list[Times]:
        """Make steps; return the time of each."""
        return [self._one() for _ in range(count)]

    def steps_until(self, is_over: Callable[[], bool]) -> list[Times]:
        """Make steps until a condition holds; return the time of each."""
        times: list[Times] = []
        give_up = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not is_over():
            times += self.steps(5)
            assert time.monotonic() < give_up, "what is measured has not started"
        return times

    def _one(self) -> Times:
        started, cpu_started = time.perf_counter(), time.thread_time()
        self.do(self.step)
        self.step += 1
        return time.perf_counter() - started, time.thread_time() - cpu_started


def in_turns(
    trainer: Trainer,
    switched_on: Callable[[], contextlib.AbstractContextManager[object]],
    written_bytes: Callable[[], int],
    *,
    rounds: int,
    steps: int,
) -> dict[str, Any]:
    """Train in blocks of steps: in each round, in random order, two with something off and one with it on.

    Args:
        trainer: The trainer.
        switched_on: Returns the block in which it is on.
        written_bytes: Returns how much it has written.
        rounds: The number of rounds.
        steps: The number of steps of a block.

    Returns:
        `times`: wall and CPU seconds of each step by round, in `off`, `off again` and `on`, and in `starting` those
        until it wrote for the first time. `written`: the number of rounds in which it wrote during the steps of `on`.
    """
    times: dict[str, list[list[Times]]] = {"off": [], "off again": [], "on": [], "starting": []}
    written = 0
    trainer.steps(steps)
    order, rng = ["off", "off again", "on"], random.Random(rounds)
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            with contextlib.ExitStack() as stack:
                if name == "on":
                    size = written_bytes()
                    stack.enter_context(switched_on())
                    times["starting"].append(trainer.steps_until(lambda: written_bytes() > size))  # noqa: B023
                trainer.steps(_SETTLE_STEPS)
                size = written_bytes()
                times[name].append(trainer.steps(steps))
                written += name == "on" and written_bytes() > size
    return {"times": times, "written": written}


def step_time_rows(times: Mapping[str, list[list[Times]]]) -> list[Row]:
    """Return how much longer steps take with something on, beside how much longer they seem to take by noise.

    Args:
        times: The times of each step, by round, in `off`, `off again` and `on`.
    """
    wall, cpu = (
        {arm: [[step[clock] for step in block] for block in blocks] for arm, blocks in times.items()}
        for clock in (0, 1)
    )
    rows = []
    for what, clocked, share in (
        ("step time, p50", wall, 0.5),
        ("step time, p99", wall, 0.99),
        ("its CPU, p50", cpu, 0.5),
    ):
        off, on = (percentile(clocked[arm], share) for arm in ("off", "on"))
        difference = Difference(clocked["on"], clocked["off"], share)
        noise = Difference(clocked["off again"], clocked["off"], share)
        rows.append(
            Row(
                what,
                f"{seconds(on)} on, {seconds(off)} off: {difference}",
                f"off against off: {noise}",
                f"{on / off:.3f} times",
                "its range reaches into that of off against off",
                difference.low <= max(abs(noise.low), abs(noise.high)),
            )
        )
    return rows


def percentile(blocks: list[list[float]], share: float) -> float:
    """Return a percentile of the steps of all blocks."""
    steps = [took for block in blocks for took in block]
    return statistics.median(steps) if share == 0.5 else process.percentile(steps, share)


class Difference:
    """The seconds by which a percentile of some steps exceeds that of others; both by rounds, which are resampled."""

    def __init__(self, steps: list[list[float]], others: list[list[float]], share: float) -> None:
        rng, found = random.Random(len(steps)), []
        for _ in range(RESAMPLES):
            rounds = rng.choices(range(len(steps)), k=len(steps))
            found.append(
                percentile([steps[number] for number in rounds], share)
                - percentile([others[number] for number in rounds], share)
            )
        self.middle = percentile(steps, share) - percentile(others, share)
        self.low, self.high = process.percentile(found, 0.025), process.percentile(found, 0.975)

    def __str__(self) -> str:
        return f"{_micro(self.middle)} µs ({_micro(self.low)} to {_micro(self.high)})"


def _micro(value: float) -> str:
    return f"{value * 1e6:+.0f}"
