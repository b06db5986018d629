"""A trainer's step time with all of diagnose() on, against off: one process, in which they take turns."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import paired, process
from benchmarks.diagnose import configuration, write_traces_to
from benchmarks.job import JOB, LOG
from benchmarks.results import Row, Table, seconds

_INTERVAL_SECONDS = 0.5
_RECORDS = 700
_NUMBERS = 200_000
_THREADS = 20


def train(rounds: int, steps: int) -> dict[str, Any]:
    """Train in turns without diagnose() and within it: see `paired.in_turns`."""
    from cloud_tpu_diagnostics import diagnostic
    from ml_goodput_measurement import goodput

    folder = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    write_traces_to(folder / "debugging")
    gate = threading.Lock()
    gate.acquire()
    for _ in range(_THREADS):
        threading.Thread(target=gate.acquire, daemon=True).start()
    trainer = _Trainer(goodput.GoodputRecorder(JOB, LOG, logging_enabled=True), diagnostic.heartbeat)
    given = configuration(cloud=True, interval=_INTERVAL_SECONDS, hangs=True)
    return paired.in_turns(
        trainer, lambda: diagnostic.diagnose(given), lambda: _size(folder), rounds=rounds, steps=steps
    )


class _Trainer(paired.Trainer):
    """Make steps of some milliseconds, half in JSON, which holds the GIL, and half in numpy; print each."""

    def __init__(self, recorder: Any, heartbeat: Callable[[int], None]) -> None:
        import numpy

        super().__init__()
        self._record, self._heartbeat = recorder.record_step_start_time, heartbeat
        self._batch = [{"name": f"{number}", "value": number * 1.5} for number in range(_RECORDS)]
        self._square_root = numpy.sqrt
        self._numbers, self._roots = numpy.ones(_NUMBERS), numpy.empty(_NUMBERS)
        recorder.record_job_start_time()

    def do(self, step: int) -> None:
        self._record(step)
        self._heartbeat(step)
        # No loop in Python: its speed depends on what was called before it, by up to a tenth.
        json.loads(json.dumps(self._batch))
        for _ in range(6):
            self._square_root(self._numbers, out=self._roots)


def _size(folder: Path) -> int:
    """Return the bytes of the journals that companions write."""
    return sum(file.stat().st_size for file in folder.glob("journal/*runtime_monitor/*.jsonl"))


def measure(*, quick: bool) -> list[Table]:
    rounds, steps = (3, 300) if quick else (10, 500)
    run = process.ours(train, rounds=rounds, steps=steps)
    assert run["written"] == rounds, f"nothing was written in {rounds - run['written']} of {rounds} blocks"
    rows = paired.step_time_rows(run["times"])
    walls = [[wall for wall, _ in block] for block in run["times"]["starting"]]
    starting = paired.percentile(walls, 0.5), paired.percentile(walls, 0.99)
    rows.append(Row("while the companion starts", f"{seconds(starting[0])} p50, {seconds(starting[1])} p99"))
    note = (
        f"{rounds} rounds of three blocks of {steps} steps in one process, in any order: without diagnose(), again"
        f" without, and within it, with the stack traces of {_THREADS + 1} threads every {_INTERVAL_SECONDS} s (1,200"
        " times as often as by default), written to a file and to the journal by the companion, which watches for hangs"
        " too. A step is half JSON, which holds the GIL, and half numpy; it is recorded, and a heartbeat is given."
        f" Differences have the 95 % interval of {paired.RESAMPLES:,} resamplings of the rounds."
    )
    return [Table("The trainer's step time within diagnose()", note, rows)]
