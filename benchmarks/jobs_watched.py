"""The cost of watching a job and of exporting many: a refresh of one job, and a scrape of all."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import process
from benchmarks.results import Row, Table, seconds
from benchmarks.simulated_jobs import BASE, SimulatedJob

_JOB = SimulatedJob("run-7", 3, 86_000, 1.0, 14.0, 500, 9_000.0, 380.0)
"""A job of a day with steps of a second, which fails ten times."""
_NEW = 90
"""The steps of a minute and a half."""


def refresh(ticks: int) -> dict[str, Any]:
    """Refresh a job as `goodput watch` does, with nothing new and with new steps."""
    from ml_diagnostics_common.redaction import redact  # noqa: F401 - as in a process that has recorded something
    from ml_goodput_measurement.goodput import GoodputRecorder
    from ml_goodput_measurement.reading import JobFollower

    run = _JOB.run(noise_seed=1, is_recorded=True)
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    now = time.time()
    shift, last = now - run.wall - BASE, 0
    for payload in run.payloads:
        if "step_count" in payload:
            last = payload["step_count"]
            recorder.record_step_start_time(last, payload["step_start_time"] + shift)
        elif "job_start_time" in payload:
            recorder.record_job_start_time(payload["job_start_time"] + shift)
    recorder.flush()
    follower = JobFollower("run-7", "goodput_run-7")
    started = time.process_time()
    follower.read()
    first = time.process_time() - started
    nothing, new = [], []
    for _ in range(ticks):
        nothing.append(_cpu_seconds(follower.read))
        for _ in range(_NEW):
            last += 1
            now += 1e-3
            recorder.record_step_start_time(last, now)
        recorder.flush()
        new.append(_cpu_seconds(follower.read))
    return {"first": first, "nothing": nothing, "new": new, "entries": len(run.payloads)}


def scrape(jobs: int, repetitions: int) -> dict[str, Any]:
    """Compute the text of a scrape, and the request of OTLP, for jobs in memory."""
    from ml_goodput_measurement.exporters.board import Board, Shown
    from ml_goodput_measurement.exporters.prometheus import PrometheusEndpoint
    from ml_goodput_measurement.goodput import GoodputRecorder
    from ml_goodput_measurement.partition import Bucket
    from prometheus_client import generate_latest

    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(time.time() - 100)
    recorder.record_step_start_time(0, time.time() - 50)
    recorder.record_step_start_time(1, time.time() - 10)
    board = Board(lambda: [("run-7", "goodput_run-7")])
    board.refresh()
    (state,) = board.shown().states
    buckets = {bucket: 1_234_567_890_123 + number for number, bucket in enumerate(Bucket) if number < 12}
    buckets = {bucket: buckets.get(bucket, 0) for bucket in Bucket}
    states = [
        dataclasses.replace(state, job_name=f"team-llm-run-{number:04}", log_id=f"goodput_{number}", buckets=buckets)
        for number in range(jobs)
    ]
    board.shown = lambda: Shown(states, 0)  # type: ignore[method-assign]
    registry = PrometheusEndpoint(board).registry
    text = generate_latest(registry)
    times = [_cpu_seconds(lambda: generate_latest(registry)) for _ in range(repetitions)]
    return {"bytes": len(text), "times": times, "otlp": [_otlp_seconds(board) for _ in range(repetitions)]}


def _otlp_seconds(board: Any) -> float:
    """Return how long a collection of the SDK takes, without sending it."""
    from ml_goodput_measurement.exporters.gauges import GAUGES
    from ml_goodput_measurement.exporters.otlp import _callback
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("benchmark")
    for gauge in GAUGES:
        meter.create_observable_gauge(gauge.otlp, callbacks=[_callback(gauge, board)], unit=gauge.unit)
    return _cpu_seconds(reader.get_metrics_data)


def _cpu_seconds(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def measure(*, quick: bool) -> list[Table]:
    """Measure refreshes of a job of 86,000 steps, and scrapes of up to 500 jobs."""
    return [_refreshes(quick=quick), _scrapes(quick=quick)]


def _refreshes(*, quick: bool) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        environment = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local"}
        found = process.ours(refresh, environment=environment, ticks=10 if quick else 50)
    nothing, new = statistics.median(found["nothing"]), statistics.median(found["new"])
    rows = [
        Row("the first one: the whole journal", seconds(found["first"])),
        Row("nothing new", seconds(nothing), target="<= 10 ms", met=nothing <= 0.01),
        Row(f"{_NEW} new steps", seconds(new), target="<= 20 ms", met=new <= 0.02),
    ]
    note = (
        f"A refresh of `goodput watch`: CPU time, from the journal; a job of a day with {found['entries']:,} entries."
    )
    return Table("Watching a job", note, rows)


def _scrapes(*, quick: bool) -> Table:
    rows = []
    for jobs in (1, 100) if quick else (1, 100, 500):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local"}
            found = process.ours(scrape, environment=environment, jobs=jobs, repetitions=5 if quick else 20)
        took = statistics.median(found["times"])
        is_judged = jobs == 100
        rows.append(
            Row(
                f"{jobs:,} job{'s' * (jobs > 1)}: {found['bytes'] / 1000:.1f} kB",
                seconds(took),
                f"{seconds(statistics.median(found['otlp']))}: collected for OTLP",
                target="<= 30 ms" if is_judged else "",
                met=took <= 0.03 if is_judged else None,
            )
        )
    note = "The text of a scrape of `goodput export prometheus`: CPU time, with 12 buckets a job and states in memory."
    return Table("Exporting jobs", note, rows)
