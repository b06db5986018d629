"""Hangs: how soon and how reliably they are detected, and the cost of a heartbeat."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks import process
from benchmarks.results import Row, Table, seconds


def measure_hangs(hangs: int, slow_phases: int, days: int) -> dict[str, list[float]]:
    """Simulate jobs; return the delay of each detection, as a share of its bound, and the number of wrong verdicts."""
    from tests.cloud_tpu_diagnostics import simulated_jobs

    shares, false = [], 0
    for seed in range(hangs):
        case, found = simulated_jobs.hang(seed)
        right = [each for each in found if each.at >= case.job.now]
        false += len(found) - min(1, len(right))
        shares += [(each.at - case.job.now) / case.bound_seconds for each in right[:1]]
    slow = sum(len(simulated_jobs.slow_phase(seed)[1]) for seed in range(10_000, 10_000 + slow_phases))
    histories = [simulated_jobs.day(seed) for seed in range(days)]
    in_days = sum(len(simulated_jobs.verdicts(day.events, day.now, seed=seed)) for seed, day in enumerate(histories))
    histories = [simulated_jobs.day(seed, compilations_amid_steps=50) for seed in range(days)]
    found_in_days = [len(simulated_jobs.verdicts(day.events, day.now, seed=seed)) for seed, day in enumerate(histories)]
    return {
        "shares": shares,
        "false": [float(false), float(slow), float(in_days), float(sum(found_in_days)), float(max(found_in_days))],
    }


def publish(count: int, repetitions: int) -> dict[str, float]:
    """Return the seconds of a call with a page and without, of a whole step, and of a bare copy of as many bytes."""
    import mmap

    from ml_diagnostics_common import progress

    memory = mmap.mmap(-1, 4096)
    state = bytes(40)

    def bare(_: int) -> None:
        memory[:40] = state

    def beat(step: int) -> None:
        progress.publish("step", step)

    def whole_step(step: int) -> None:
        progress.publish("data", step)
        progress.publish("step", step)
        progress.publish("sync", step)

    times: dict[str, list[float]] = {"bare": [], "without": [], "with": [], "whole step": []}
    for _ in range(repetitions):
        times["without"].append(_tight(beat, count))
        page = progress.ProgressPage.create()
        progress.start_publishing(page)
        times["with"].append(_tight(beat, count))
        times["whole step"].append(_tight(whole_step, count))
        progress.stop_publishing(page)
        times["bare"].append(_tight(bare, count))
    return {name: statistics.median(values) for name, values in times.items()}


def record(count: int, repetitions: int) -> dict[str, float]:
    """Return the seconds to record a step, with a page and without, in turns."""
    from ml_diagnostics_common import progress
    from ml_goodput_measurement.goodput import GoodputRecorder

    times: dict[str, list[float]] = {}
    for is_enabled in (True, False):
        recorder = GoodputRecorder("job", f"goodput_job_{is_enabled}", logging_enabled=is_enabled)
        name = "enabled" if is_enabled else "disabled"
        for _ in range(repetitions):
            times.setdefault(f"{name} without", []).append(_tight(recorder.record_step_start_time, count))
            page = progress.ProgressPage.create()
            progress.start_publishing(page)
            times.setdefault(f"{name} with", []).append(_tight(recorder.record_step_start_time, count))
            progress.stop_publishing(page)
    return {name: statistics.median(values) for name, values in times.items()}


def _tight(function: Callable[[int], None], count: int) -> float:
    started = time.perf_counter()
    for step in range(count):
        function(step)
    return (time.perf_counter() - started) / count


def measure(*, quick: bool) -> list[Table]:
    hangs, slow_phases, days = (40, 40, 1) if quick else (200, 200, 20)
    count, repetitions = (20_000, 3) if quick else (100_000, 9)
    return [_verdicts(hangs, slow_phases, days), _costs(count, repetitions)]


def _verdicts(hangs: int, slow_phases: int, days: int) -> Table:
    found = process.ours(measure_hangs, hangs=hangs, slow_phases=slow_phases, days=days)
    shares = found["shares"]
    false, slow, in_days, compiling, worst = (int(number) for number in found["false"])
    right = len(shares)
    precision = right / max(1, right + false + slow)
    rows = [
        Row(f"of {hangs} hangs detected", f"{right}", target="all", met=right == hangs),
        Row("detected after, p50", f"{process.percentile(shares, 0.5):.1%} of the bound"),
        Row("detected after, max", f"{max(shares):.1%} of the bound", target="<= 100 %", met=max(shares) <= 1),
        Row(f"of {slow_phases} slow phases taken for hangs", f"{slow}", target="0", met=slow == 0),
        Row("precision", f"{precision:.1%}", target="100 %", met=precision == 1),
        Row(f"verdicts in {days} days without a hang", f"{in_days}", target="0", met=in_days == 0),
        Row(
            "the same, with compilations amid steps that take 50 steps",
            f"{compiling}",
            ratio=f"at most {worst} a day",
            target="<= 2 a day",
            met=worst <= 2,
        ),
    ]
    return Table(
        "Hangs detected",
        "Simulated jobs, checked every second or a little later. Steps take 0.05 s to 40 s; two in three of the hangs"
        " are in a step, where the bound is max(3 x the 99th percentile of the last 1,000 step times, 30 s); the others"
        " in a checkpoint, an evaluation or data loading (3 x the longest so far, 600 s) or in the very first step"
        " (1,800 s). A slow phase continues after 50 % to 95 % of its bound. The days have all that resembles a hang:"
        " compilations, also amid steps, checkpoints, evaluations, also unannounced, and loading; what is not announced"
        " takes less than the bound the first time. If it takes longer, the first two are reported as hangs:"
        " with so short a bound the first cannot be distinguished from a hang; if one stall changed the timeout, the"
        " hang after a stall would be reported late; two within a day change it.",
        rows,
    )


def _costs(count: int, repetitions: int) -> Table:
    cost = process.ours(publish, count=count, repetitions=repetitions)
    step = process.ours(record, count=count, repetitions=repetitions)
    rows = [
        Row(
            "progress published",
            seconds(cost["with"]),
            f"bare copy {seconds(cost['bare'])}",
            f"{cost['with'] / cost['bare']:.1f} times bare",
            "< 1 µs",
            cost["with"] < 1e-6,
        ),
        Row(
            "all of a step that is summarised: its loading of data, its start and its wait for the devices",
            seconds(cost["whole step"]),
            f"bare copy {seconds(cost['bare'])}",
            target="< 2 µs",
            met=cost["whole step"] < 2e-6,
        ),
        Row("the same call without a watcher", seconds(cost["without"]), f"bare copy {seconds(cost['bare'])}"),
    ]
    rows += [
        Row(
            f"step recorded by a recorder that is {name}, watched",
            seconds(step[f"{name} with"]),
            f"not watched {seconds(step[f'{name} without'])}",
            f"{step[f'{name} with'] / step[f'{name} without']:.2f} times",
        )
        for name in ("enabled", "disabled")
    ]
    return Table(
        "Progress published",
        "To a page of memory that another process can read while Python is stuck; in tight loops, in turns. The bare"
        " copy puts as many bytes into mapped memory.",
        rows,
    )
