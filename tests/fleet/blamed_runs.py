"""Jobs of several attempts that one host ends, written by the public writers: runs, companions and goodput."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.local_engine import FleetRun, run_local

from ..console.web.made_runs import SECOND_NS, MadeAttempt, MadeRun, _Writer

HOSTS = ("tpu-0", "tpu-1", "tpu-2", "tpu-3")
STEPS = 40
FALLOUT = "JaxRuntimeError: UNAVAILABLE: task 3 stopped sending heartbeats"


class BlamedRun(_Writer):
    """A run of which each attempt but the last one is ended by one of its hosts.

    Args:
        root: The diagnostics folder.
        job: The name of the job, its run and its log.
        started_ns: Its start, in ns since 1970.
        culprits: The index of the host that ends each attempt; None for an attempt of which no end is known.
        end: The end of that host, as its companion records it.
    """

    def __init__(
        self,
        root: Path,
        job: str,
        started_ns: int,
        culprits: Sequence[int | None],
        *,
        end: dict[str, Any] | None = None,
        hosts: Sequence[str] = HOSTS,
    ) -> None:
        attempts = [
            MadeAttempt(STEPS * number - 5 * bool(number), STEPS * (number + 1) - 1, "FAILED", FALLOUT)
            for number in range(len(culprits))
        ]
        attempts.append(MadeAttempt(STEPS * len(culprits) - 5, STEPS * (len(culprits) + 1)))
        super().__init__(MadeRun(job, started_ns, attempts, hosts=hosts, metrics={}, step_seconds=30.0), root)
        self._culprits = culprits
        self._end = end or {"how": "signal", "signal": "SIGKILL", "message": "The job was ended by SIGKILL"}

    def write(self) -> int:
        """Write it, and return the time of its last entry, in ns since 1970."""
        for number, attempt in enumerate(self.run.attempts, 1):
            self.write_attempt(number, attempt)
        self.finish()
        return self.now_ns

    def write_host(self, host: int, number: int, attempt: MadeAttempt, start_ns: int, end_ns: int) -> None:
        is_last = number > len(self._culprits)
        culprit = None if is_last else self._culprits[number - 1]
        recorded = attempt if is_last or culprit not in (None, host) else replace(attempt, phase="ACTIVE", reason="")
        super().write_host(host, number, recorded, start_ns, end_ns)
        if culprit == host:
            self.now_ns = end_ns
            journal = self.journal(COMPANION_LOG_ID, host, number)
            journal.append({"verb": "stacktraceanalyzer", "kind": "job_ended", "ended_ns": end_ns, **self._end})
            journal.close(5)


def rows_of_mirror(root: Path, mirror: Path, as_of_ns: int) -> FleetRun:
    """Mirror all journals of a folder, and make the rows of all jobs."""
    # By another process: a process writes what it has recorded itself in its own time.
    push = [sys.executable, "-m", "ml_goodput_measurement", "mirror", "push", "--mirror", str(mirror)]
    subprocess.run(push, env={**os.environ, "ML_DIAGNOSTICS_DIR": str(root)}, check=True, capture_output=True)
    compact(mirror, now_ns=as_of_ns, through_ns=as_of_ns + 2 * 86_400 * SECOND_NS)
    return run_local(mirror, as_of_ns, processes=1)
