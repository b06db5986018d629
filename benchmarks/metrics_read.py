"""A run of a million values, shown and listed by the command: how long that takes, and how much memory."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks import commands, process
from benchmarks.results import Row, Table, seconds

_METRICS = ("loss", "learning_rate", "gradient_norm", "mfu")
_LONGEST_SECONDS = 3.0
_MOST_MIB = 200.0


def record(values: int) -> str:
    """Record a run's metrics, and return the run's id."""
    from google_cloud_mldiagnostics import machinelearning_run, metrics

    run = machinelearning_run("read", log_system_metrics=False)
    for step in range(values // len(_METRICS)):
        for name in _METRICS:
            metrics.record(name, 1.0 / (step + 1), step)
    return run.name


def measure(*, quick: bool) -> list[Table]:
    """Show the run, list its metrics, and write them as JSON."""
    values = 100_000 if quick else 1_000_000
    command = str(Path(sys.executable).with_name("mldiagnostics"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local", "PATH": os.environ["PATH"]}
        run = process.ours(record, environment=environment, values=values)
        for arguments in (["show", run], ["metrics", run], ["metrics", run, "--format", "json"]):
            ended = commands.median(
                [commands.run([command, *arguments], environment) for _ in range(1 if quick else 3)]
            )
            has_target = not quick and "json" not in arguments
            rows.append(
                Row(
                    f"`mldiagnostics {' '.join(['RUN' if word == run else word for word in arguments])}`",
                    f"{seconds(ended.seconds)}, {ended.mib:.0f} MiB",
                    target=f"< {_LONGEST_SECONDS:g} s, < {_MOST_MIB:g} MiB" if has_target else "",
                    met=ended.seconds < _LONGEST_SECONDS and ended.mib < _MOST_MIB if has_target else None,
                )
            )
    return [Table("Metrics read", f"A run of {values:,} values, from the journal in the page cache.", rows)]
