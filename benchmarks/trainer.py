"""A trainer's step time with all uploads on, against off: one process, in which they take turns."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import paired, process
from benchmarks.job import JOB, LOG
from benchmarks.monitoring import loopback_cloud
from benchmarks.paired import Times
from benchmarks.results import Row, Table, seconds

_UPLOAD_SECONDS = 0.5
_WINDOWS = [3600, 24 * 3600]
_WORK = 60_000
_SETTLE_STEPS = 100


def train(rounds: int, steps: int) -> dict[str, Any]:
    """Trains in blocks of steps: in each round, in any order, two with no monitor and one with all of its uploads.

    Args:
        rounds: How many.
        steps: Of a block.

    Returns:
        Wall and CPU seconds of each step by round, in `off`, `off again` and `on`; of those while the helper process
        started, in `starting`; and in how many rounds something was uploaded.
    """
    from ml_goodput_measurement import goodput, monitoring

    folder = tempfile.mkdtemp()
    trainer = _Trainer(goodput.GoodputRecorder(JOB, LOG, logging_enabled=True))
    times: dict[str, list[list[Times]]] = {"off": [], "off again": [], "on": [], "starting": []}
    uploads = 0
    trainer.steps(steps)
    order, rng = ["off", "off again", "on"], random.Random(rounds)
    for number in range(rounds):
        rng.shuffle(order)
        for name in order:
            if name != "on":
                trainer.steps(_SETTLE_STEPS)
                times[name].append(trainer.steps(steps))
                continue
            runs = Path(folder, str(number))
            monitor = _started(monitoring, str(runs))
            times["starting"].append(trainer.steps_until(lambda: _size(runs) > 0))  # noqa: B023 - called at once
            trainer.steps(_SETTLE_STEPS)
            size = _size(runs)
            times["on"].append(trainer.steps(steps))
            uploads += _size(runs) > size
            monitor.stop_step_deviation_uploader(skip_final_flush=True)
            monitor.stop_rolling_window_goodput_uploader(skip_final_flush=True)
            monitor.stop_goodput_uploader(skip_final_flush=True)
    last_step = goodput.GoodputCalculator(JOB, LOG).get_job_goodput()[2]
    return {"times": times, "uploads": uploads, "last_step": last_step, "done": trainer.step - 2}


class _Trainer(paired.Trainer):
    """Does steps of a few milliseconds that hold the GIL, and records each."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._record = recorder.record_step_start_time
        recorder.record_job_start_time()

    def do(self, step: int) -> None:
        self._record(step)
        sum(number * number for number in range(_WORK))


def _started(monitoring: Any, folder: str) -> Any:
    """A monitor with all uploads on, sixty times as often as usual."""
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
    return monitor


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("events.*"))


def measure(*, quick: bool) -> list[Table]:
    rounds, steps = (3, 300) if quick else (10, 500)
    sent: list[list[int]] = []
    with loopback_cloud(sent) as cloud:
        environment = {**cloud, "ML_DIAGNOSTICS_BACKEND": "auto"}
        run = process.ours(train, environment=environment, rounds=rounds, steps=steps)
    assert run["last_step"] == run["done"], run
    assert run["uploads"] == rounds, f"nothing was uploaded in {rounds - run['uploads']} of {rounds} blocks"
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
