"""The cost of `ml-diagnostics run`: steps of a JAX program that records nothing, by turns observed and not observed."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks import process
from benchmarks.paired import RESAMPLES
from benchmarks.results import Row, Table, seconds

_ARRAYS = 100
_WIDTH = 256
_MOST = 0.01
_STEPS = 10
"""The steps of a block. Their mean is one value, since the inference records several steps at once."""
_SETTLE_STEPS = 6
"""Longer than what the inference defers, so that no step without an observer pays for one with it."""
_WARM_STEPS = 120
"""More than the calls in which the step is found among all functions, and its results among its arguments."""
_ARMS = ("off", "off again", "on")


def train(rounds: int) -> dict[str, list[list[tuple[float, float]]]]:
    """Train in short blocks of steps, in random order two not observed and one observed in each round.

    Args:
        rounds: The number of rounds.

    Returns:
        Wall seconds, and CPU seconds of all threads, of each step, by round.
    """
    import jax
    import jax.numpy as jnp
    from jax._src import array

    plain: Any = (array.ArrayImpl._value, array.ArrayImpl.block_until_ready)
    from ml_diagnostics._inference.session import Session

    dispatches = Session("benchmark", time.time(), startup_folder="/none")._dispatches
    observed: Any = (array.ArrayImpl._value, array.ArrayImpl.block_until_ready)

    set_hook: Any = dispatches._set_hook

    def switch(is_on: bool) -> None:
        set_hook(dispatches._on_call if is_on else None)
        kind: Any = array.ArrayImpl
        kind._value, kind.block_until_ready = observed if is_on else plain

    @jax.jit
    def train_step(params: Any, x: Any) -> Any:
        return [w - 0.01 * (w @ x) for w in params], x.mean()

    params: Any = [jnp.ones((_WIDTH, _WIDTH)) for _ in range(_ARRAYS)]
    x = jnp.ones((_WIDTH, _WIDTH)) / _WIDTH

    def steps(count: int) -> list[tuple[float, float]]:
        nonlocal params
        times = []
        for _ in range(count):
            started, cpu_started = time.perf_counter(), time.process_time()
            params, loss = train_step(params, x)
            loss.block_until_ready()
            times.append((time.perf_counter() - started, time.process_time() - cpu_started))
        return times

    steps(_WARM_STEPS)
    assert dispatches._step is not None, "the step was not found"
    times: dict[str, list[list[tuple[float, float]]]] = {arm: [] for arm in _ARMS}
    order, rng = list(_ARMS), random.Random(rounds)
    for _ in range(rounds):
        rng.shuffle(order)
        for arm in order:
            switch(arm == "on")
            steps(_SETTLE_STEPS)
            times[arm].append(steps(_STEPS))
    return times


def measure(*, quick: bool) -> list[Table]:
    rounds = 30 if quick else 300
    times = process.ours(train, rounds=rounds, environment={"JAX_PLATFORMS": "cpu"})
    rows = []
    for what, clock in (("wall time of a step", 0), ("its CPU in all threads", 1)):
        off, again, on = ([statistics.mean(step[clock] for step in block) for block in times[arm]] for arm in _ARMS)
        usual = statistics.median(off)
        longer = _median_and_range([mine - (one + two) / 2 for mine, one, two in zip(on, off, again, strict=True)])
        noise = _median_and_range([two - one for one, two in zip(off, again, strict=True)])
        rows.append(
            Row(
                what,
                f"{longer[0] / usual:.2%} longer; {_range(longer, usual)} of {seconds(usual)}",
                f"off against off: {noise[0] / usual:+.2%}, {_range(noise, usual)}",
                target="< 1 %",
                met=longer[0] < _MOST * usual,
            )
        )
    note = (
        f"One process, {rounds} rounds in random order of {_STEPS} steps without an observer, again without, and with"
        f" it; {_ARRAYS} arrays of parameters, on the CPU. Each figure is the median over the rounds of how much longer"
        " the mean step of a block is than those of the same round, and its range holds 95 % of resampled medians."
    )
    return [Table("What the inference of goodput costs a step", note, rows)]


def _median_and_range(differences: list[float]) -> tuple[float, float, float]:
    rng = random.Random(len(differences))
    found = [statistics.median(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES)]
    return statistics.median(differences), process.percentile(found, 0.025), process.percentile(found, 0.975)


def _range(found: tuple[float, float, float], usual: float) -> str:
    return f"{found[1] / usual:+.2%} to {found[2] / usual:+.2%}"
