"""A job in a mirror, read on a machine that has nothing else of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of, parse_name

from ..common.mirror.mirrors import mirror_by_hand

__all__ = ["Laptop", "steps"]


class Laptop:
    """A machine with an empty journal, and with a mirror that jobs elsewhere write.

    Args:
        folder: An empty folder.
        mirror: The mirror.
        monkeypatch: Sets ML_DIAGNOSTICS_DIR.
    """

    def __init__(self, folder: Path, mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mirror = mirror
        self.folder = folder
        self._roots: list[Path] = []
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(folder / "laptop"))

    def mirrored(
        self,
        job: str,
        payloads: Iterable[dict[str, object]],
        *,
        log: str = "",
        lines_each: Iterable[int] = (10,),
        is_ended: bool = True,
        level: int = 0,
        **labels: str,
    ) -> str:
        """Record a job in a process elsewhere; return its writer."""
        log = log or f"goodput_{job}"
        root = self.folder / f"elsewhere-{len(self._roots)}"
        self._roots.append(root)
        journal = Journal(log, root=root, labels={"job": job, "process_index": "0", "host": "elsewhere", **labels})
        for payload in payloads:
            journal.append({**payload, "job_name": job})
        journal.close()
        mirror_by_hand(root, self.mirror, lines_each, level=level, log_id=log)
        paths = LogPaths.of(self.mirror, log)
        if is_ended:
            Bucket(self.mirror).create(paths.path(EndName(day_of(time.time_ns()), journal.writer)), b"{}")
        return str(journal.writer)

    def lose(self, job: str, number: int) -> SegmentName:
        """Delete an object of a job; return its name."""
        bucket = Bucket(self.mirror)
        names = map(parse_name, bucket.list_paths(LogPaths.of(self.mirror, f"goodput_{job}").folder))
        name = sorted(name for name in names if isinstance(name, SegmentName))[number]
        bucket.delete(LogPaths.of(self.mirror, f"goodput_{job}").path(name))
        return name

    def take_journal(self, number: int) -> None:
        """Copy the journal of one of the jobs to this machine."""
        shutil.copytree(self._roots[number], os.environ["ML_DIAGNOSTICS_DIR"], dirs_exist_ok=True)


def steps(started: float, count: int, *, is_ended: bool = True) -> list[dict[str, object]]:
    """Return the payloads of a job with steps of 10 s, a minute after its start."""
    payloads: list[dict[str, object]] = [{"job_start_time": started}]
    payloads += [{"step_count": step, "step_start_time": started + 60 + 10 * step} for step in range(count)]
    return [*payloads, {"job_end_time": started + 60 + 10 * count}] if is_ended else payloads
