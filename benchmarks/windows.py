"""Parts of a job's time: what is left without exclusions, intervals, and the rolling windows of a monitor."""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from bisect import bisect_left, bisect_right
from typing import Any

from benchmarks import journalled, process
from benchmarks.job import BASE, JOB, LOG, MemoryLog, Payload, Training
from benchmarks.results import Row, Table, seconds

_HOUR = 3600
_ROLLING = [_HOUR, 6 * _HOUR, 24 * _HOUR, 72 * _HOUR, 120 * _HOUR]
_ONE_ROLLING = 24 * _HOUR
_EXCLUDED_SECONDS = 600
_NEW_STEPS = 10


def exclude(steps: int, custom_events: int, count: int, repetitions: int) -> dict[str, Any]:
    """Query a job in memory again, without some intervals that are spread evenly over it; for both libraries."""
    from ml_goodput_measurement import goodput

    training = Training(steps, custom_events)
    log = MemoryLog()
    log.payloads += training.payloads(steps)
    length = training.at - BASE
    starts = [BASE + length * (number + 0.5) / count for number in range(count)]
    intervals = [(_moment(start), _moment(start + _EXCLUDED_SECONDS)) for start in starts]
    with tempfile.TemporaryDirectory() as cache_dir:
        calculator = goodput.GoodputCalculator(JOB, LOG, cloud_logger=log, cache_dir=cache_dir)
        calculator.get_job_goodput(include_badput_breakdown=True)
        times = []
        for _ in range(repetitions):
            started = time.perf_counter()
            answer = calculator.get_job_goodput_with_exclusions(intervals, include_badput_breakdown=True)
            times.append(time.perf_counter() - started)
    _, _, last_step, excluded = answer
    return {"times": times, "last_step": last_step, "excluded": excluded}


def ask_after_cold_read(until: float, repetitions: int) -> dict[str, Any]:
    """Read the journal, query intervals, then more after every ten new steps, and save the state."""
    from ml_goodput_measurement import goodput

    job = journalled.JournalledJob.resumed()
    calculator = goodput.GoodputCalculator(JOB, LOG, _clock_ns=job.clock_ns)
    calculator.get_job_goodput(include_badput_breakdown=True)
    calculator.save_state()
    first = _ask(calculator, until - _HOUR, until)
    later: dict[str, list[float]] = {"1 h": [], "24 h": [], "all": []}
    step = job.training.step
    for _ in range(repetitions):
        for name, times in later.items():
            step += _NEW_STEPS
            job.run(step)
            times.append(_ask(calculator, job.training.at - _length(name, job.training.at), job.training.at))
    last_step = calculator.get_job_goodput_interval(_moment(BASE), _moment(job.training.at))[2]
    job.close()
    return {"first": first, "later": later, "new_steps": step, "last_step": last_step}


def ask_from_saved_state(until: float) -> dict[str, Any]:
    """Query an interval first; the journal has entries from after the save of the state."""
    from ml_goodput_measurement import goodput

    make = goodput.GoodputCalculator  # Imported when it is first named.
    started = time.perf_counter()
    answer = make(JOB, LOG).get_job_goodput_interval(_moment(until - _HOUR), _moment(until))
    return {"seconds": time.perf_counter() - started, "last_step": answer[2]}


def ask_reference(steps: int) -> dict[str, Any]:
    """Query the reference, over a log in memory that finds what is in an interval at no cost."""
    from ml_goodput_measurement import goodput

    training, log = Training(steps), _LogByTime()
    for payload in training.payloads(steps):
        log.payloads.append(payload)
        log.times.append(training.at)
    with tempfile.TemporaryDirectory() as cache_dir:
        calculator = goodput.GoodputCalculator(JOB, LOG, cloud_logger=log, cache_dir=cache_dir)
        later = {
            name: [_ask(calculator, training.at - _length(name, training.at), training.at)]
            for name in ("1 h", "24 h", "all")
        }
        windows = [_ask(calculator, training.at - length, training.at) for length in _ROLLING]
    return {"later": later, "one": windows[_ROLLING.index(_ONE_ROLLING)], "five": sum(windows)}


def roll(cycles: int) -> dict[str, Any]:
    """Return the wall and CPU seconds of a monitor's cycles with none, one and five rolling windows, in turns."""
    from ml_goodput_measurement import goodput

    job = journalled.JournalledJob.resumed()
    windows = {"none": [], "one": [_ONE_ROLLING], "five": _ROLLING}
    calculators = {name: goodput.GoodputCalculator(JOB, LOG, _clock_ns=job.clock_ns) for name in windows}
    for calculator in calculators.values():
        calculator.snapshot(cumulative=False)
    before = process.resident_mib()
    calculators["five"].snapshot(cumulative=False, window_seconds=_ROLLING)
    added = process.resident_mib() - before
    wall: dict[str, list[float]] = {name: [] for name in windows}
    cpu: dict[str, list[float]] = {name: [] for name in windows}
    names, step = list(windows), job.training.step
    for cycle in range(cycles + 5):
        step += _NEW_STEPS
        job.run(step)
        for name in names[cycle % 3 :] + names[: cycle % 3]:
            started, cpu_started = time.perf_counter(), time.process_time()
            snapshot = calculators[name].snapshot(cumulative=False, window_seconds=windows[name])
            took, cpu_took = time.perf_counter() - started, time.process_time() - cpu_started
            assert [window.window_seconds for window in snapshot.windows] == windows[name]
            if cycle >= 5:  # The first ones lay down what later ones use.
                wall[name].append(took)
                cpu[name].append(cpu_took)
    for window in calculators["five"].snapshot(cumulative=False, window_seconds=_ROLLING).windows:
        end = job.training.at
        start = max(BASE, end - window.window_seconds)
        expected = calculators["none"].get_job_goodput_interval(_moment(start), _moment(end))[0]
        assert abs(window.goodput_percent - expected) < 0.01, (window, expected)
    job.close()
    return {"wall": wall, "cpu": cpu, "added_mib": added}


class _LogByTime(MemoryLog):
    """A log that is asked for a stretch of time, as Cloud Logging is."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def read_cloud_logging_entries(
        self, start_time: Any = None, end_time: Any = None, last_entry_info: Any = None
    ) -> tuple[list[Payload], tuple[Any, Any]]:
        first = 0 if start_time is None else bisect_right(self.times, start_time.timestamp())
        stop = len(self.times) if end_time is None else bisect_left(self.times, end_time.timestamp())
        return self.payloads[first:stop], (None, None)


def _ask(calculator: Any, start: float, end: float) -> float:
    started = time.perf_counter()
    details = calculator.get_interval_metric_details(_moment(start), _moment(end))
    took = time.perf_counter() - started
    (percent,) = details["interval_goodput"].values()
    assert 50 < percent < 100, percent
    return took


def _length(name: str, until: float) -> float:
    return {"1 h": _HOUR, "24 h": 24 * _HOUR, "all": until - BASE}[name]


def _moment(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc)


def measure(*, quick: bool) -> list[Table]:
    steps = 100_000 if quick else 1_000_000
    theirs = process.reference(ask_reference, steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"ML_DIAGNOSTICS_DIR": folder}
        until = process.ours(journalled.write, environment=environment, steps=steps)["until"]
        cold = process.ours(ask_after_cold_read, environment=environment, until=until, repetitions=10 if quick else 100)
        warm = [process.ours(ask_from_saved_state, environment=environment, until=until) for _ in range(3)]
        rolled = process.ours(roll, environment=environment, cycles=60 if quick else 500)
    assert cold["last_step"] == cold["new_steps"] - 2
    assert {run["last_step"] for run in warm} == {steps - 2}
    what = f"of {steps:,} steps"
    return [
        _exclusions(quick=quick),
        Table(
            "Intervals",
            "`get_interval_metric_details`, ten new steps before each. Ours reads a journal on disk, the reference a"
            " log in memory that finds what lies in an interval at no cost.",
            _interval_rows(what, cold, warm, theirs),
        ),
        Table(
            "Rolling windows",
            f"A monitor's cycle after ten new steps, {what}: what is new is read from the journal, and all windows are"
            " sent; three monitors in turns. The reference reads the log again for each window.",
            _rolling_rows(rolled, theirs),
        ),
    ]


def _exclusions(*, quick: bool) -> Table:
    case: dict[str, Any] = {"steps": 100_000, "custom_events": 1000, "count": 10}
    runs = [process.ours(exclude, **case, repetitions=10) for _ in range(1 if quick else 3)]
    assert {run["last_step"] for run in runs} == {case["steps"] - 2}
    assert {run["excluded"] for run in runs} == {case["count"] * _EXCLUDED_SECONDS}
    firsts, laters = [run["times"][0] for run in runs], [took for run in runs for took in run["times"][1:]]
    first, later = statistics.median(firsts), statistics.median(laters)
    compared = ratio = ""
    if not quick:
        theirs = process.reference(exclude, **case, repetitions=1)["times"][0]
        compared, ratio = seconds(theirs), f"{theirs / first:,.0f} times faster"
    rows = [
        Row("10 exclusions, the first time", seconds(first), compared, ratio, "< 0.1 s", first < 0.1),
        Row("the same later", seconds(later)),
    ]
    note = (
        "`get_job_goodput_with_exclusions`, 100,000 steps and 1,000 custom events in memory, which were read before;"
        " ten stretches of ten minutes, evenly over the job."
    )
    return Table("Exclusions", note, rows)


def _interval_rows(what: str, cold: dict[str, Any], warm: list[dict[str, Any]], theirs: dict[str, Any]) -> list[Row]:
    restored = statistics.median(run["seconds"] for run in warm)
    rows = [
        Row(
            f"1 h {what}, the first after all was read", seconds(cold["first"]), "", "", "< 20 ms", cold["first"] < 0.02
        )
    ]
    for name, times in cold["later"].items():
        p50, p99 = statistics.median(times), process.percentile(times, 0.99)
        their_time = theirs["later"][name][0]
        rows.append(
            Row(
                f"{name} {what}",
                f"{seconds(p50)} p50, {seconds(p99)} p99",
                seconds(their_time),
                f"{their_time / p50:,.0f} times faster",
                "p99 < 20 ms",
                p99 < 0.02,
            )
        )
    rows.append(Row(f"1 h {what}, the first question of a new process, from saved state", seconds(restored)))
    return rows


def _rolling_rows(rolled: dict[str, Any], theirs: dict[str, Any]) -> list[Row]:
    rows = []
    for clock in ("cpu", "wall"):
        p50 = {name: statistics.median(times) for name, times in rolled[clock].items()}
        ratio, their_ratio = p50["five"] / p50["one"], theirs["five"] / theirs["one"]
        rows.append(
            Row(
                f"five windows against one, {'CPU' if clock == 'cpu' else 'wall'}",
                f"{seconds(p50['five'])} against {seconds(p50['one'])}; {seconds(p50['none'])} without any",
                f"{seconds(theirs['five'])} against {seconds(theirs['one'])}" if clock == "wall" else "",
                f"{ratio:.2f} times" + (f"; reference {their_ratio:.2f} times" if clock == "wall" else ""),
                "<= 1.5 times",
                ratio <= 1.5,
            )
        )
    rows.append(Row("memory added by the first five", f"{rolled['added_mib']:.1f} MiB"))
    return rows
