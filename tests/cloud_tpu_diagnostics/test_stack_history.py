"""The stacks of a job at any moment: groups, the processes that others wait for, and the last moment before an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cloud_tpu_diagnostics.entries import HANG_SUSPECTED, JOB_ENDED, SNAPSHOT, STEP_SUMMARY, entry
from cloud_tpu_diagnostics.reading import StackHistory, describe
from ml_diagnostics_common.entry import EntryContext, LogEntry

_SECOND_NS = 10**9
START_NS = 1_700_000_000 * _SECOND_NS
WAITS = ("psum (/job/train.py:88)", "step (/job/train.py:204)", "<module> (/job/train.py:263)")
READS = ("__next__ (/job/data.py:40)", "step (/job/train.py:198)", "<module> (/job/train.py:263)")
COMPUTES = ("matmul (/job/model.py:7)", "step (/job/train.py:200)", "<module> (/job/train.py:263)")


class Recorded:
    """Entries of the companions of hosts, at seconds after the start."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []

    def add(self, host: int, at: float, kind: str, *, attempt: str = "1", **fields: Any) -> None:
        labels = {"host": f"host-{host}", "pid": str(40 + host), "attempt": attempt, "process_index": str(host)}
        context = EntryContext("log", "", {}, labels, writer=f"host-{host}")
        payload = entry(kind, "", **fields)
        self.entries.append(LogEntry(START_NS + round(at * _SECOND_NS), len(self.entries), payload, context))

    def stack(self, host: int, at: float, frames: tuple[str, ...], **fields: Any) -> None:
        group = {"threads": 1, "main": True, "names": ["MainThread"], "frames": list(frames)}
        stack = {"groups": [group], "threads": 1, "time_ns": 0, "phase": "step", "step": 7, "interval_seconds": 600}
        self.add(host, at, SNAPSHOT, **{**stack, **fields})

    def history(self) -> StackHistory:
        history = StackHistory()
        history.add(sorted(self.entries, key=lambda each: each.timestamp_ns))
        return history


def stuck(frames: Mapping[int, tuple[str, ...]]) -> Recorded:
    """Hosts of which stacks are taken at 100 s and at 110 s."""
    job = Recorded()
    for at in (100.0, 110.0):
        for host, each in frames.items():
            job.stack(host, at + host / 100, each)
    return job


def test_the_stacks_of_all_hosts_are_one_moment_and_groups_know_for_how_long() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS, 3: WAITS})
    picture = job.history().at()
    assert [round((moment - START_NS) / _SECOND_NS, 2) for moment in job.history().moments()] == [100.03, 110.03]
    assert describe(picture.picture) == (
        "3 of 4 wait in psum (train.py:88) at step 7; host-1 is in __next__ (data.py:40) at step 7"
    )
    assert picture.odd == {1}
    assert picture.unchanged_seconds == pytest.approx((10.03, 10.02))


def test_the_report_of_a_hang_shows_for_how_long_it_was_before_the_first_stack() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS})
    job.add(1, 101.0, HANG_SUSPECTED, stuck_seconds=61.0, phase="step", step=7)
    assert job.history().at().unchanged_seconds[1] == pytest.approx(70.02)


def test_a_stack_that_changed_is_new() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS})
    job.stack(1, 120.0, COMPUTES)
    picture = job.history().at()
    assert picture.unchanged_seconds[1] == 0
    assert "matmul" in describe(picture.picture)


def test_an_earlier_moment_is_shown_as_it_was() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS})
    job.stack(1, 200.0, COMPUTES)
    picture = job.history().at(START_NS + 150 * _SECOND_NS)
    assert "__next__" in describe(picture.picture)
    assert job.history().at(START_NS).time_ns == job.history().moments()[0]


def test_of_an_ended_job_the_last_moment_before_the_end_is_shown() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS})
    for host in range(3):
        job.add(host, 130.0, JOB_ENDED, how="signal", signal="SIGKILL")
    picture = job.history().at().picture
    assert not picture.ended
    assert len(picture.groups) == 2


def test_the_end_that_the_parent_recorded_is_that_of_the_same_process() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS})
    job.add(1, 130.0, JOB_ENDED, attempt="0", how="signal", signal="SIGKILL")
    job.add(1, 131.0, "console", attempt="0", stream="out")
    picture = job.history().at(now_ns=START_NS + 140 * _SECOND_NS).picture
    assert [dump.process for dump in picture.ended] == ["host-1"]
    assert picture.processes == 3


def test_a_process_of_a_live_job_with_an_overdue_stack_is_silent() -> None:
    job = stuck({0: WAITS, 1: READS, 2: WAITS})
    for host in (0, 2):
        job.add(host, 1900.0, STEP_SUMMARY, count=1)
    picture = job.history().at(now_ns=START_NS + 2000 * _SECOND_NS).picture
    assert [dump.host for dump, _ in picture.silent] == ["host-1"]


@pytest.mark.parametrize(
    ("frames", "odd"),
    [
        ({0: WAITS, 1: WAITS}, set()),
        ({0: WAITS, 1: READS}, set()),
        ({0: WAITS, 1: WAITS, 2: READS, 3: READS}, set()),
        ({0: WAITS, 1: WAITS, 2: WAITS, 3: READS, 4: COMPUTES}, {1, 2}),
        ({0: COMPUTES, 1: COMPUTES, 2: ("acquire (/job/lock.py:1)",)}, set()),
    ],
)
def test_only_processes_that_others_wait_for_are_odd(frames: dict[int, tuple[str, ...]], odd: set[int]) -> None:
    assert stuck(frames).history().at().odd == odd


def test_of_two_processes_the_mark_of_the_loop_decides() -> None:
    job = Recorded()
    job.stack(0, 100, COMPUTES, phase="sync")
    job.stack(1, 100, READS)
    picture = job.history().at()
    (odd,) = picture.odd
    assert picture.picture.groups[odd].processes[0].host == "host-1"


def test_without_stacks_there_is_no_moment() -> None:
    history = StackHistory()
    assert history.moments() == []
    assert history.at().time_ns == 0
    assert history.at(now_ns=START_NS).picture.processes == 0


def test_entries_that_are_no_stacks_are_passed_over() -> None:
    job = Recorded()
    job.add(0, 1, SNAPSHOT, groups="damaged")
    job.add(0, 2, SNAPSHOT, groups=[{"frames": [7]}], threads="x")
    assert job.history().at().picture.processes == 1
    assert describe(job.history().at().picture) == "host-0 did not show their main thread"


def test_a_long_job_keeps_its_last_stacks() -> None:
    job = Recorded()
    for at in range(1000):
        job.stack(0, at * 600, WAITS)
    history = job.history()
    assert len(history.moments()) == 64
    assert history.at().unchanged_seconds == pytest.approx((63 * 600,))
