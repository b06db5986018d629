"""`goodput watch` over a mirror: what a refresh costs, from the list of the mirror to the state of the job."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks import mirror, process
from benchmarks.job import JOB, LOG
from benchmarks.results import Row, Table, seconds

_MIRROR = "gs://bucket/watched"
_NEW = 90


class _Counting:
    """Cloud Storage, with the number of requests."""

    def __init__(self, storage: Any) -> None:
        self.requests = 0
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        self.requests += 1
        return getattr(self._storage, name)


def watched(entries: int, ticks: int) -> dict[str, float]:
    """Follow a job in a mirror as `goodput watch` does; return the CPU seconds and the requests of refreshes."""
    from ml_goodput_measurement._query.job_state import JobFollower
    from ml_goodput_measurement._query.sources import Sources

    job = mirror._Job()
    job.now_ns = time.time_ns() - entries * 10**9 // 3
    round_ = mirror._round(job, _MIRROR)
    while job.entries < entries:
        job.run(min(10_000, entries - job.entries))
        assert round_.write_own(deadline=lambda: 1e18)
    os.environ["ML_DIAGNOSTICS_DIR"] = str(job.root / "elsewhere")
    follower = JobFollower(JOB, LOG, sources=Sources(_MIRROR, asks_cloud=False))
    first = mirror._cpu(follower.read)
    log = follower._reader._log
    assert log is not None
    assert log.mirror is not None
    bucket = log.mirror._reader._bucket
    counting = _Counting(bucket.storage)
    bucket.storage = counting
    idle, requests, new = [], [], []
    for _ in range(ticks):
        before = counting.requests
        idle.append(mirror._cpu(follower.read))
        requests.append(counting.requests - before)
        job.run(_NEW)
        assert round_.write_own(deadline=lambda: 1e18)
        new.append(mirror._cpu(follower.read))
    state = follower.read()
    assert state.steps_kept >= job.step - 2
    return {
        "first": first,
        "idle": statistics.median(idle),
        "requests": max(requests),
        "new": statistics.median(new),
    }


def measure(*, quick: bool) -> list[Table]:
    """Measure refreshes of a job of a day, with nothing new and with 90 new entries."""
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer

    entries = 30_000 if quick else 260_000
    with CloudStorageServer(buckets=["bucket"]) as server:
        environment = {**server.environment(), "ML_DIAGNOSTICS_BACKEND": "local"}
        found = process.ours(watched, environment=environment, entries=entries, ticks=5 if quick else 30)
    rows = [
        Row(f"the first one: {entries:,} entries", seconds(found["first"])),
        Row(
            "nothing new",
            seconds(found["idle"]),
            f"requests: {found['requests']:.0f}",
            "",
            "<= 10 ms and 2 requests",
            found["idle"] <= 0.01 and found["requests"] <= 2,
        ),
        Row(f"{_NEW} new entries", seconds(found["new"]), "", "", "<= 20 ms", found["new"] <= 0.02),
    ]
    note = (
        "A refresh of `goodput watch` on a machine without the job's journal: CPU time, from a mirror in a bucket on "
        "loopback, through Google's client; steps of a second with two marks of data loading each."
    )
    return [Table("Watching a job in a mirror", note, rows)]
