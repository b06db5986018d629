"""The cost of an import: time, and memory over bare Python."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks import process
from benchmarks.results import Row, Table, seconds


def import_names(*names: str) -> dict[str, float]:
    """Import the library and take names from it; the same code for both."""
    before = process.resident_mib()
    started = time.perf_counter()
    from ml_goodput_measurement import goodput

    for name in names:
        getattr(goodput, name)
    return {"seconds": time.perf_counter() - started, "mib": process.resident_mib() - before}


def import_recorder() -> dict[str, float]:
    """Import what every training process imports."""
    return import_names("GoodputRecorder")


def import_calculator() -> dict[str, float]:
    """Import what a process that queries needs, too."""
    return import_names("GoodputRecorder", "GoodputCalculator")


def measure(*, quick: bool) -> list[Table]:
    repetitions = 3 if quick else 9
    rows = []
    for function, what, limit in (
        (import_recorder, "to record", True),
        (import_calculator, "to record and to ask", False),
    ):
        runs: dict[str, list[dict[str, Any]]] = {"ours": [], "reference": []}
        for _ in range(repetitions):
            runs["ours"].append(process.ours(function))
            runs["reference"].append(process.reference(function))
        mine, theirs = (statistics.median(run["seconds"] for run in runs[key]) for key in ("ours", "reference"))
        mib, their_mib = (statistics.median(run["mib"] for run in runs[key]) for key in ("ours", "reference"))
        rows.append(
            Row(
                f"import {what}",
                seconds(mine),
                seconds(theirs),
                f"{theirs / mine:.0f} times faster",
                "<= 100 ms" if limit else "",
                mine <= 0.1 if limit else None,
            )
        )
        rows.append(
            Row(
                "memory added by it",
                f"{mib:.0f} MiB",
                f"{their_mib:.0f} MiB",
                f"1/{their_mib / mib:.0f}",
                "<= 25 MiB" if limit else "",
                mib <= 25 if limit else None,
            )
        )
    return [Table("Import", "In a fresh process, over Python with the benchmark's few modules.", rows)]
