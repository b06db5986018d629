"""Runs for the tests of recording: a log without a control plane."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.mlrun_types import MLRun

from .kept_entries import kept_entries

RUN = "my-run-20261121053242"


@contextlib.contextmanager
def active(root: Path, *, process_index: int = 0, run_id: str = RUN, **options: Any) -> Iterator[ActiveRun]:
    """Run the block with an active run."""
    run = start_run(root, process_index=process_index, run_id=run_id, **options)
    try:
        yield run
    finally:
        run.log.close(5)
        set_active_run(None)


def start_run(root: Path, *, process_index: int = 0, run_id: str = RUN, **options: Any) -> ActiveRun:
    """Start a run that is not closed, for a process that ends with it."""
    labels = {"job": run_id, "attempt": "1", "host": "host-a", "process_index": str(process_index), "pid": "0"}
    settings = {"location": "us-central1", "project": "", "labels": labels, "is_shipped": False, **options}
    log = RunLog(run_id, root=root, **settings)
    run = ActiveRun(
        MLRun(run_id),
        log,
        folder=root / "runs" / run_id,
        host="host-a",
        process_index=process_index,
        process_count=2,
        pid=os.getpid(),
        is_local=True,
    )
    set_active_run(run)
    return run


def metrics_of(root: Path, run_id: str = RUN) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and payloads of a run's metrics."""
    payloads = [(entry.resource_label("namespace"), entry.payload) for entry in kept_entries(run_id=run_id, root=root)]
    return [(name, payload) for name, payload in payloads if not name.startswith("mlrun_")]
