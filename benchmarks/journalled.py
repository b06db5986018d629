"""The synthetic job in the journal on disk, where it can go on in another process."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

from benchmarks.job import JOB, LOG, Training


class JournalledJob:
    """A job with its entries in the journal of ML_DIAGNOSTICS_DIR; `run` continues it."""

    def __init__(self, training: Training) -> None:
        from ml_diagnostics_common.journal import Journal

        self.training = training
        labels = {"job": JOB, "process_index": "0"}
        self._journal = Journal(LOG, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]), labels=labels)

    @classmethod
    def resumed(cls) -> JournalledJob:
        """Return the job that `write` left in this folder."""
        return cls(pickle.loads(_kept().read_bytes()))

    def clock_ns(self) -> int:
        """Now, by the clock of the job."""
        return int(self.training.at * 1e9)

    def run(self, until: int) -> int:
        """Continue up to the start of step `until`; return the number of written entries."""
        entries = 0
        for payload in self.training.payloads(until):
            self._journal.append_text(str(self.clock_ns()), json.dumps(payload, separators=(",", ":")))
            entries += 1
        return entries

    def close(self) -> None:
        """Close the journal; `resumed` continues from here."""
        self._journal.close()
        _kept().write_bytes(pickle.dumps(self.training))


def write(steps: int, custom_events: int = 0) -> dict[str, Any]:
    """Write a job to the journal; return its number of entries and its end, in seconds since 1970."""
    job = JournalledJob(Training(steps, custom_events))
    entries = job.run(steps)
    job.close()
    return {"entries": entries, "until": job.training.at}


def _kept() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"], "training.pickle")
