"""Read the entries of runs from the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google_cloud_mldiagnostics._entries import LOG_ID
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader


def kept_entries(
    namespace: str | None = None, *, run_id: str | None = None, root: Path | None = None
) -> list[LogEntry]:
    """Return entries in order: of one namespace or all, of one run or all, of this test's folder or another."""
    of_run = {} if run_id is None else {"node_id": {run_id}}
    reader = JournalReader(LOG_ID, root=root or diagnostics_directory(), resource_labels=of_run)
    entries = [entry for batch in reader.read_new() for entry in batch]
    return [entry for entry in entries if namespace in (None, entry.resource_label("namespace"))]


def kept_payloads(namespace: str, *, run_id: str | None = None) -> list[dict[str, Any]]:
    """Return the payloads of the entries under a namespace."""
    return [dict(entry.payload) for entry in kept_entries(namespace, run_id=run_id)]
