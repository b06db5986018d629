"""The recorders of one job: when two record it, one counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ml_goodput_measurement.events import EventBatch, read_events
from ml_goodput_measurement.ledger import Ledger

__all__ = ["Recorders"]


class Recorders:
    """A ledger for each process index that recorded a job; the lowest that recorded the job itself counts.

    Checkpoint operations are different: every host may report them, so they go to all.
    """

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self.skipped: Counter[str] = Counter()
        """Entries of this job that could not be read, by reason."""
        self.lost: dict[str, dict[str, int]] = {}
        """Entries that a recorder could not write, by reason, under the name of each report, which may come twice."""
        self.ledgers: dict[int, Ledger] = {0: Ledger()}

    def add(self, process_index: int, payloads: Iterable[Any]) -> None:
        """Adds payloads that one process recorded, of whatever job.

        Args:
            process_index: Index of the process; 0 where nobody said.
            payloads: In any order, as often as they come.
        """
        batch = read_events(payloads, self.job_name, self.skipped)
        self.lost.update(batch.lost)
        if process_index not in self.ledgers and batch.records_job():
            known = self.ledger.facts.checkpoint_operations()
            self.ledgers[process_index] = Ledger()
            self.ledgers[process_index].add(EventBatch(checkpoints=known))
        for index, ledger in self.ledgers.items():
            if index == process_index:
                ledger.add(batch)
            elif batch.checkpoints:
                ledger.add(EventBatch(checkpoints=batch.checkpoints))

    @property
    def ledger(self) -> Ledger:
        """The ledger that counts."""
        return self.ledgers[self._counts()]

    def notes(self) -> list[str]:
        """Says which recorders do not count, and what was lost or could not be read."""
        ledger = self.ledger
        notes = [
            f"process {index} recorded this job as well; process {self._counts()} counts, as the lowest index"
            for index, other in sorted(self.ledgers.items())
            if other is not ledger and other.facts.recorded_job()
        ]
        lost: Counter[str] = Counter()
        for counts in self.lost.values():
            lost.update(counts)
        notes += [f"{count} entries were lost while recording: {reason}" for reason, count in sorted(lost.items())]
        return notes + [f"{count} entries were passed over: {reason}" for reason, count in sorted(self.skipped.items())]

    def _counts(self) -> int:
        recorded = [index for index, ledger in self.ledgers.items() if ledger.facts.recorded_job()]
        return min(recorded, default=0)
