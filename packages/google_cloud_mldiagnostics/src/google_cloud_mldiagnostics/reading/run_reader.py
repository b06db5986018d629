"""Reading the entries of a run: the union of this machine's journal and Cloud Logging, each entry once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import EntryReader, JournalReader, UnionReader

from google_cloud_mldiagnostics.entries import LOG_ID

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import LoggingTransport

__all__ = ["run_reader"]


def run_reader(
    run_id: str,
    *,
    root: Path | None = None,
    transport: LoggingTransport | None = None,
    since_ns: int = 0,
    position: Mapping[str, Any] | None = None,
    patience_seconds: float = 60.0,
) -> EntryReader:
    """Returns a reader of all that a run's processes have told: metrics, configs, processes, sessions, losses.

    Args:
        run_id: The run's id.
        root: The diagnostics folder; None for the usual one.
        transport: Cloud Logging, in the project that keeps the run; None reads the journal alone.
        since_ns: Nothing of this time or older is read from Cloud Logging, in ns since 1970; 0 is all that it keeps,
            for which it is asked back for years.
        position: Of an earlier reader with the same sources; None for the beginning.
        patience_seconds: How long requests to Cloud Logging may fail before a read gives up.
    """
    of_run = {"node_id": run_id}
    positions: list[Mapping[str, Any] | None] = list((position or {}).get("readers") or [])
    positions += [None, None]
    readers: list[EntryReader] = [
        JournalReader(LOG_ID, root=root or diagnostics_directory(), position=positions[0], resource_labels=of_run)
    ]
    if transport is not None:
        from ml_diagnostics_common.cloud_logging import CloudLoggingReader

        readers.append(
            CloudLoggingReader(
                transport,
                transport.project,
                LOG_ID,
                resource_labels=of_run,
                start_time_ns=since_ns or None,
                position=positions[1],
                patience_seconds=patience_seconds,
            )
        )
    return UnionReader(readers, position=position)
