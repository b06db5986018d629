"""Measure what ml-diagnostics adds: a step of its loop, TensorBoard beside recorded metrics, and its import."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from benchmarks import process
from benchmarks.job import JOB
from benchmarks.results import Row, Table, seconds

_TURN_STEPS = 1_000


def import_front_door() -> float:
    """Import what a program imports, and the function that it calls; return the seconds."""
    started = time.perf_counter()
    import ml_diagnostics

    assert callable(ml_diagnostics.instrument)
    return time.perf_counter() - started


def record_steps(turns: int) -> dict[str, list[float]]:
    """Record steps in turns by the loop, by the four calls that it replaces, and by three; return seconds of a step."""
    import ml_diagnostics

    times: dict[str, list[float]] = {"loop": [], "four calls": [], "three calls": []}
    with ml_diagnostics.instrument(JOB, run=False, stacks=False, hangs=False, monitor=False) as job:
        recorder, first, batches = job.recorder, 0, range(_TURN_STEPS)

        def loop() -> None:
            for _ in job.steps(batches, start=first):
                pass

        def calls() -> None:
            for step, _ in enumerate(batches, first):
                recorder.record_data_loading_start_time()
                recorder.record_data_loading_end_time()
                recorder.record_step_start_time(step)
                recorder.record_step_end_time(step)

        def fewer_calls() -> None:
            for step, _ in enumerate(batches, first):
                recorder.record_data_loading_start_time()
                recorder.record_data_loading_end_time()
                recorder.record_step_start_time(step)

        for _ in range(turns):
            for name, function in (("loop", loop), ("four calls", calls), ("three calls", fewer_calls)):
                started = time.perf_counter()
                function()
                times[name].append((time.perf_counter() - started) / _TURN_STEPS)
                first += _TURN_STEPS
    return times


def record_metrics(count: int, in_tensorboard: bool) -> list[float]:
    """Record values of a metric, some of them a millisecond apart; return the seconds of each call."""
    from google_cloud_mldiagnostics import machinelearning_run, metrics

    with machinelearning_run(JOB, gcs_path="", configs={}):
        if in_tensorboard:
            metrics.to_tensorboard(os.environ["ML_DIAGNOSTICS_DIR"] + "/tensorboard")
        times, clock = [], time.perf_counter_ns
        for step in range(count):
            started = clock()
            metrics.record("loss", 2.5, step)
            times.append((clock() - started) / 1e9)
            if step % 100 == 0:
                time.sleep(0.001)  # As in training, the thread that copies values gets its turns.
    return times


def measure(*, quick: bool) -> list[Table]:
    return [
        Table(
            "The front door",
            f"`job.steps` in turns of {_TURN_STEPS:,} steps with the calls that it replaces: start and end of the load,"
            " and of the step. Values of a metric with and without TensorBoard, each in a process of its own.",
            [
                *_step_rows(10 if quick else 50),
                *_metric_rows(5_000 if quick else 50_000),
                _import_row(3 if quick else 9),
            ],
        ),
    ]


def _step_rows(turns: int) -> list[Row]:
    times: dict[str, list[float]] = process.ours(record_steps, turns=turns)
    loop, four, three = (statistics.median(times[name]) for name in ("loop", "four calls", "three calls"))
    return [
        Row(
            "a step of `job.steps`",
            seconds(loop),
            f"the four calls {seconds(four)}; without the step's end {seconds(three)}",
            f"{loop / four:.2f} times; {loop / three:.2f} times the three",
            "<= 1.3 times",
            loop <= 1.3 * four,
        )
    ]


def _metric_rows(count: int) -> list[Row]:
    found: dict[bool, list[float]] = {
        on: process.ours(record_metrics, count=count, in_tensorboard=on) for on in (False, True)
    }
    shares: dict[str, Callable[[list[float]], float]] = {
        "p50": statistics.median,
        "p99": lambda times: process.percentile(times, 0.99),
    }
    return [
        Row(
            f"a value with `metrics.to_tensorboard`, {name}",
            seconds(share(found[True])),
            f"without {seconds(share(found[False]))}",
            f"{share(found[True]) / share(found[False]):.2f} times",
            "<= 5 µs" if name == "p50" else "",
            share(found[True]) <= 5e-6 if name == "p50" else None,
        )
        for name, share in shares.items()
    ]


def _import_row(repetitions: int) -> Row:
    took = statistics.median(process.ours(import_front_door) for _ in range(repetitions))
    return Row("import of `ml_diagnostics`, with `instrument`", seconds(took), "", "", "<= 20 ms", took <= 0.02)
