"""A trainer's step time with all of a run on, against off: one process, in which they take turns."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks import paired, trackers
from benchmarks.paired import Times
from benchmarks.results import Row, Table, seconds
from benchmarks.run_cloud import PROJECT, REGION, run_cloud
from benchmarks.trackers import OURS, Record, Tracker

_BACKEND_SECONDS = 0.03
_INTERVAL_SECONDS = 0.5
_WIDTH = 512
_BATCH = 256
_SETTLE_STEPS = 20
_ARMS = ["off", "off again", "on"]


def train(kind: str, urls: dict[str, str], rounds: int, steps: int) -> dict[str, Any]:
    """Train in blocks of steps: in each round, in random order, two without a run and one within it.

    Args:
        kind: Not used: ours starts and ends a run with each block.
        urls: Not used.
        rounds: The number of rounds.
        steps: The number of steps of a block.

    Returns:
        Wall and CPU seconds of each step by round, in `off`, `off again` and `on`; and the number of recorded steps.
    """
    from google_cloud_mldiagnostics import machinelearning_run, metrics

    del kind, urls
    trainer = _Trainer()

    @contextlib.contextmanager
    def on(number: int) -> Any:
        with machinelearning_run(
            name=f"round {number}",
            project=PROJECT,
            region=REGION,
            configs={"width": _WIDTH, "batch": _BATCH},
            metrics_record_interval_sec=_INTERVAL_SECONDS,
            on_demand_xprof=True,
        ):
            yield metrics.record

    return {"times": _in_turns(trainer, on, rounds, steps), "recorded": trainer.recorded}


def train_with_others(kind: str, urls: dict[str, str], rounds: int, steps: int) -> dict[str, Any]:
    """Do the same with a tracker that is started once: blocks without it only record nothing."""
    trackers.prepare(kind, urls)
    trainer = _Trainer()
    record = trackers.start(kind)

    def record_float(name: str, value: Any, step: int) -> None:
        record(name, float(value), step)

    @contextlib.contextmanager
    def on(_: int) -> Any:
        yield record_float

    return {"times": _in_turns(trainer, on, rounds, steps), "recorded": trainer.recorded}


def _in_turns(trainer: _Trainer, on: Callable[[int], Any], rounds: int, steps: int) -> dict[str, list[list[Times]]]:
    times: dict[str, list[list[Times]]] = {arm: [] for arm in _ARMS}
    trainer.steps(steps)
    order, rng = list(_ARMS), random.Random(rounds)
    for number in range(rounds):
        rng.shuffle(order)
        for arm in order:
            with on(number) if arm == "on" else contextlib.nullcontext() as trainer.record:
                trainer.steps(_SETTLE_STEPS)
                times[arm].append(trainer.steps(steps))
    return times


class _Trainer:
    """Trains a small network with JAX, in steps of some milliseconds, and records four metrics of each.

    Attributes:
        record: Records a metric; None records none.
        recorded: The number of recorded steps.
    """

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        def loss_of(weights: Any, batch: Any) -> Any:
            for weight in weights:
                batch = jnp.tanh(batch @ weight)
            return jnp.mean(batch * batch)

        def update(weights: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
            return [weight - 1e-3 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss

        self.record: Record | None = None
        self.recorded = 0
        self._step = 0
        self._update = jax.jit(update)
        self._weights = [jnp.eye(_WIDTH) * 0.9 for _ in range(4)]
        self._batch = jnp.ones((_BATCH, _WIDTH))
        self._took = 1.0

    def steps(self, count: int) -> list[Times]:
        """Make steps; return the time of each."""
        return [self._one() for _ in range(count)]

    def _one(self) -> Times:
        started, cpu_started = time.perf_counter(), time.process_time()
        self._weights, loss = self._update(self._weights, self._batch)
        if self.record is not None:
            self.record("loss", loss, self._step)
            self.record("learning_rate", 1e-3, self._step)
            self.record("step_time", self._took, self._step)
            self.record("throughput", _BATCH / self._took, self._step)
            self.recorded += 1
        loss.block_until_ready()
        self._step += 1
        self._took = time.perf_counter() - started
        return self._took, time.process_time() - cpu_started


def measure(*, quick: bool) -> list[Table]:
    rounds, steps = (3, 100) if quick else (10, 300)
    with run_cloud(logging_delay_seconds=_BACKEND_SECONDS) as cloud:
        run = OURS.run(train, cloud, {"JAX_PLATFORMS": "cpu"}, rounds=rounds, steps=steps)
        phases, sent = cloud.phases(), cloud.steps("step_time")
    assert phases == ["COMPLETED"] * rounds, phases
    assert sent == run["recorded"], f"{sent} of {run['recorded']} steps have arrived"
    rows = paired.step_time_rows(run["times"])
    rows += [_other(tracker, max(2, rounds // 3), steps // 3) for tracker in trackers.ALL[1:]]
    note = (
        f"{rounds} rounds of three blocks of {steps} steps in one process, in any order: without a run, again without,"
        " and within one that has Cloud Logging and the control plane on loopback, a server for profiles on demand,"
        f" and system metrics every {_INTERVAL_SECONDS} s (20 times as often as by default). A step trains a small"
        " network with JAX; four metrics are recorded, the loss as the array that the device still computes. CPU is"
        f" the whole process's, shipping included. Differences have the 95 % interval of {paired.RESAMPLES:,}"
        " resamplings of the rounds. The others are started once and record floats, with their defaults."
    )
    return [Table("The trainer's step time with a run", note, rows)]


def _other(tracker: Tracker, rounds: int, steps: int) -> Row:
    with run_cloud(logging_delay_seconds=_BACKEND_SECONDS) as cloud:
        run = tracker.run(train_with_others, cloud, {"JAX_PLATFORMS": "cpu"}, rounds=rounds, steps=steps)
    off, on = ([[wall for wall, _ in block] for block in run["times"][arm]] for arm in ("off", "on"))
    p50, p99 = ((paired.percentile(on, share), paired.percentile(off, share)) for share in (0.5, 0.99))
    return Row(
        f"with {tracker.name}",
        "",
        f"p50 {seconds(p50[0])} on, {seconds(p50[1])} off; p99 {seconds(p99[0])} on, {seconds(p99[1])} off",
        f"{p50[0] / p50[1]:.3f} times",
    )
