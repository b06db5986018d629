"""The goodput of a run: which logs are its own, its ledger kept up to date, and its report as of the run's end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.reader import JournalReader
from ml_goodput_measurement.partition import JobReport
from ml_goodput_measurement.reading import JobLedger

from ml_diagnostics_console._web.cloud_runs import cloud_run
from ml_diagnostics_console._web.writers import Writer

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData

__all__ = ["NO_GOODPUT", "RunGoodput", "as_of_ns", "goodput_of", "why_none"]

NO_GOODPUT: Final = (
    "This run has recorded no goodput. Wrap the training in `with ml_diagnostics.instrument(NAME) as job:` and iterate "
    "over `job.steps(...)`, or start it with `ml-diagnostics run -- python train.py`."
)
"""The text for a ledger without entries."""
_LATE_SECONDS: Final = 60.0
_READING: Final = "The goodput log of this run is long: it is still being read."
_SECOND_NS: Final = 1_000_000_000
_MARGIN_NS: Final = 600 * _SECOND_NS
"""A recorder may start before its run does, and before the clock of another host shows that."""


class RunGoodput:
    """The ledger of one run. A long log is read in parts of a fraction of a second: the page must not wait for it.

    Args:
        root: The diagnostics folder.

    Attributes:
        is_complete: False while a part of the log that was there is not read yet; then there is no report, or an older
            one.
        part_seconds: The duration of a part.
    """

    part_seconds = 0.2

    def __init__(self, root: Path) -> None:
        self.is_complete = True
        self._root = root
        self._batches: Iterator[list[LogEntry]] | None = None
        self._job, self._log_id = "", ""
        self._names: frozenset[str] = frozenset()
        self._reader: JournalReader | None = None
        self._ledger: JobLedger | None = None
        self._settled: tuple[float | None, frozenset[str]] | None = None
        self._report: tuple[int, int, JobReport | None] | None = None

    @property
    def ledger(self) -> JobLedger | None:
        """The ledger; None while nothing is recorded."""
        return self._ledger

    @property
    def log_id(self) -> str:
        """The log that it was read from; empty while there is none."""
        return self._log_id

    @property
    def writers(self) -> frozenset[str]:
        """The writers of the run's entries in that log."""
        return self._names

    def report(self, run: RunData) -> JobReport | None:
        """Read what is new, and return the report of the run; None without goodput, or while it is read."""
        self.refresh(run)
        if self._ledger is None:
            return None
        if not self.is_complete:
            return self._report[2] if self._report is not None else None
        now_ns, facts = as_of_ns(run), self._ledger.fact_count
        if self._report is None or self._report[:2] != (now_ns, facts):
            self._report = now_ns, facts, self._ledger.report(now_ns)
        return self._report[2]

    def refresh(self, run: RunData) -> None:
        """Read what is new in the run's goodput logs; of a run that has ended, only if there is a new writer."""
        jobs = [*run.job_names, run.name, run.id]
        start_ns = round(run.started_s * _SECOND_NS) - _MARGIN_NS
        end_ns = round((run.ended_s or run.now_s) * _SECOND_NS)
        found = run.journal.goodput.of(run.id, jobs, start_ns, end_ns)
        names = frozenset(writer.name for writer in found)
        if not found or (run.ended_s is not None and self._settled == (run.ended_s, names)):
            return
        if self._batches is None:
            self._choose(found)
        self.is_complete = self._read_part()
        if self.is_complete and not _has_just_ended(run):
            self._settled = run.ended_s, names

    def is_due(self, run: RunData) -> bool:
        """Return True if the report of a run may change though the run does not: a log is long, or written late."""
        return not self.is_complete or (self._ledger is not None and _has_just_ended(run))

    def _read_part(self) -> bool:
        """Read for a part of a second; return True if there is nothing more now."""
        if self._reader is None or self._ledger is None:
            return True
        deadline = time.monotonic() + self.part_seconds
        self._batches = self._batches or self._reader.read_new()
        for batch in self._batches:
            self._ledger.add(batch)
            if time.monotonic() > deadline:
                return False
        self._batches = None
        return True

    def _choose(self, found: list[Writer]) -> None:
        """Choose the job with the most writers, the newest of several, and have its writers read."""
        counts = Counter((writer.log_id, writer.job) for writer in found)
        newest = {(writer.log_id, writer.job): writer.started_ns for writer in found}
        log_id, job = max(counts, key=lambda key: (counts[key], newest[key]))
        names = frozenset(writer.name for writer in found if (writer.log_id, writer.job) == (log_id, job))
        if (log_id, job) != (self._log_id, self._job):
            self._log_id, self._job, self._names = log_id, job, frozenset()
            self._ledger, self._reader = JobLedger(job), None
        if names != self._names:
            position = None if self._reader is None else self._reader.position()
            self._reader = JournalReader(log_id, root=self._root, position=position, writers=names)
            self._names = names


def _has_just_ended(run: RunData) -> bool:
    """Return True for some time after the end of a run: its last entries may be written after the run's own."""
    return run.ended_s is not None and time.time() - run.ended_s < _LATE_SECONDS


def why_none(run: RunData) -> str:
    """Return why a run has no report, and what would fill it."""
    if not goodput_of(run).is_complete:
        return _READING
    in_cloud = cloud_run(run)
    return NO_GOODPUT if in_cloud is None else in_cloud.no_goodput


def as_of_ns(run: RunData) -> int:
    """Return the moment up to which the time of a run counts, in ns since 1970.

    That is its end; now while it runs; and the last sign of it if it is silent, so that a step in flight does not grow
    for ever.
    """
    if run.ended_s is not None:
        return round(run.ended_s * _SECOND_NS)
    seconds = run.now_s if run.is_live else (run.beat_s or run.now_s)
    return round(seconds * _SECOND_NS)


def goodput_of(run: RunData) -> RunGoodput:
    """Return the goodput of a run, with what was read of it before."""
    return run.part(RunGoodput, lambda: RunGoodput(run.journal.root))
