"""A query that reads the job from the journal on disk, and one that goes on from saved state."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.job import JOB, LOG, Training
from benchmarks.results import Row, Table, seconds


def write_journal(steps: int) -> int:
    """Write a job to the journal; return its number of entries."""
    from ml_diagnostics_common.journal import Journal

    journal = Journal(LOG, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]), labels={"job": JOB, "process_index": "0"})
    training = Training(steps)
    entries = 0
    for payload in training.payloads(steps):
        journal.append_text(str(int(training.at * 1e9)), json.dumps(payload, separators=(",", ":")))
        entries += 1
    journal.close()
    return entries


def query() -> dict[str, Any]:
    """Query like a new process, and return the work that it took."""
    from ml_goodput_measurement import goodput

    make = goodput.GoodputCalculator  # Imported when it is first named.
    process.forget_peak()
    before = process.resident_mib()
    started = time.perf_counter()
    calculator = make(JOB, LOG)
    result = calculator.get_job_goodput(include_badput_breakdown=True)
    took = time.perf_counter() - started
    added = process.resident_mib(peak=True) - before
    calculator.save_state()
    return {"seconds": took, "last_step": result.last_step, "added_mib": added}


def measure(*, quick: bool) -> list[Table]:
    steps = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        environment = {"ML_DIAGNOSTICS_DIR": folder}
        entries = process.ours(write_journal, environment=environment, steps=steps)
        cold, warm = [], []
        for _ in range(1 if quick else 3):
            for saved in Path(folder, "state", "goodput").glob("*"):
                saved.unlink()
            cold.append(process.ours(query, environment=environment))
            warm += [process.ours(query, environment=environment) for _ in range(3)]
    assert {run["last_step"] for run in cold + warm} == {steps - 2}
    first, restored = (statistics.median(run["seconds"] for run in runs) for runs in (cold, warm))
    added = statistics.median(run["added_mib"] for run in cold)
    rows = [
        Row(
            f"first query of {entries:,} entries in the journal, state saved",
            f"{seconds(first)}, {added:.0f} MiB",
            target="" if quick else "< 4 s",
            met=None if quick else first < 4,
        ),
        Row(
            "the same question by a new process, from saved state",
            seconds(restored),
            ratio=f"1/{first / restored:.0f} of the first",
            target="< 50 ms",
            met=restored < 0.05,
        ),
    ]
    return [Table("From disk", "A new process each time, with the files in the page cache.", rows)]
