"""The jobs with goodput entries in the journal, and the runs that they belong to."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from google_cloud_mldiagnostics.reading import LOG_ID
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.journal import list_segments, log_directory, read_header

from ml_diagnostics_console._web.run_data import GoodputJob, RunData

__all__ = ["GoodputLogs"]


class GoodputLogs:
    """Reads one header of each writer of the journal, each once.

    Args:
        root: The diagnostics folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, set[str]] = {}
        self._by_run: dict[str, dict[GoodputJob, None]] = {}
        self._by_job: dict[str, dict[GoodputJob, None]] = {}

    def refresh(self) -> bool:
        """Read the headers of new writers; return True if there were any."""
        others = {log_directory(self._root, log_id) for log_id in (LOG_ID, COMPANION_LOG_ID)}
        is_new = False
        for folder in (self._root / "journal").glob("*/"):
            if folder in others:
                continue
            known = self._known.setdefault(folder.name, set())
            for segment in list_segments(folder):
                if segment.writer in known:
                    continue
                header = None
                with contextlib.suppress(OSError):
                    header = read_header(segment)
                if header is not None:
                    known.add(segment.writer)
                    is_new = self._add(header.log_id, header.labels) or is_new
        return is_new

    def _add(self, log_id: str, labels: Mapping[str, str]) -> bool:
        job, run = labels.get("job", ""), labels.get("run", "")
        if not job:
            return False
        goodput_job = GoodputJob(job, log_id)
        self._by_job.setdefault(job, {})[goodput_job] = None
        self._by_run.setdefault(run or job, {})[goodput_job] = None
        return True

    def of_run(self, run: RunData) -> tuple[GoodputJob, ...]:
        """Return the jobs of a run: those that name it, else those with its name."""
        name = str(run.resource.get("displayName", ""))
        found = self._by_run.get(run.id) or self._by_run.get(name) or self._by_job.get(name) or {}
        return tuple(found)
