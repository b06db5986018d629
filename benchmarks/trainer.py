"""A trainer's step time with all uploads on, against off: one process, in which they take turns."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import paired, process
from benchmarks.job import JOB, LOG
from benchmarks.monitoring import loopback_cloud
from benchmarks.results import Row, Table, seconds

_UPLOAD_SECONDS = 0.5
_WINDOWS = [3600, 24 * 3600]
_WORK = 60_000


def train(rounds: int, steps: int) -> dict[str, Any]:
    """Train in turns without a monitor and with one that does all uploads: see `paired.in_turns`."""
    from ml_goodput_measurement import goodput

    folder = Path(tempfile.mkdtemp())
    trainer = _Trainer(goodput.GoodputRecorder(JOB, LOG, logging_enabled=True))
    folders = (folder / str(number) for number in itertools.count())
    run = paired.in_turns(
        trainer, lambda: _monitored(str(next(folders))), lambda: _size(folder), rounds=rounds, steps=steps
    )
    last_step = goodput.GoodputCalculator(JOB, LOG).get_job_goodput()[2]
    return {**run, "last_step": last_step, "done": trainer.step - 2}


class _Trainer(paired.Trainer):
    """Make steps of a few milliseconds that hold the GIL, and record each."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._record = recorder.record_step_start_time
        recorder.record_job_start_time()

    def do(self, step: int) -> None:
        self._record(step)
        sum(number * number for number in range(_WORK))


@contextlib.contextmanager
def _monitored(folder: str) -> Iterator[None]:
    """Run a monitor with all uploads on, sixty times as often as usual."""
    from ml_goodput_measurement import monitoring

    options = monitoring.GCPOptions(location="zone", acc_type="tpu", enable_gcp_step_deviation_metrics=True)
    monitor = monitoring.GoodputMonitor(
        JOB,
        LOG,
        folder,
        _UPLOAD_SECONDS,
        monitoring_enabled=True,
        include_badput_breakdown=True,
        include_step_deviation=True,
        step_deviation_interval_seconds=_UPLOAD_SECONDS,
        gcp_options=options,
    )
    monitor.start_goodput_uploader()
    monitor.start_step_deviation_uploader()
    monitor.start_rolling_window_goodput_uploader(_WINDOWS)
    try:
        yield
    finally:
        monitor.stop_step_deviation_uploader(skip_final_flush=True)
        monitor.stop_rolling_window_goodput_uploader(skip_final_flush=True)
        monitor.stop_goodput_uploader(skip_final_flush=True)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("events.*"))


def measure(*, quick: bool) -> list[Table]:
    rounds, steps = (3, 300) if quick else (10, 500)
    sent: list[list[int]] = []
    with loopback_cloud(sent) as cloud:
        environment = {**cloud, "ML_DIAGNOSTICS_BACKEND": "auto"}
        run = process.ours(train, environment=environment, rounds=rounds, steps=steps)
    assert run["last_step"] == run["done"], run
    assert run["written"] == rounds, f"nothing was uploaded in {rounds - run['written']} of {rounds} blocks"
    assert sent, "nothing was sent to Cloud Monitoring"
    rows = paired.step_time_rows(run["times"])
    walls = [[wall for wall, _ in block] for block in run["times"]["starting"]]
    starting = paired.percentile(walls, 0.5), paired.percentile(walls, 0.99)
    rows.append(Row("while the helper process starts", f"{seconds(starting[0])} p50, {seconds(starting[1])} p99"))
    note = (
        f"{rounds} rounds of three blocks of {steps} steps in one process, in any order: with no monitor, again with"
        f" none, and with all uploads on, each every {_UPLOAD_SECONDS:.1f} s, to TensorBoard and Cloud Monitoring on"
        " loopback. A step is pure Python that holds the GIL, and is recorded. Differences have the 95 % interval of"
        f" {paired.RESAMPLES:,} resamplings of the rounds."
    )
    return [Table("The trainer's step time with a monitor", note, rows)]
