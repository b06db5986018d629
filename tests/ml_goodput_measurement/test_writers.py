"""Several writers of one job: generated lives, judged by an oracle of the rules, in whatever order they arrive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer

from .accounts import moment_ns
from .histories import BASE, JOB, History, Payload
from .lives import columns_of, lay_over, live_one_attempt, thorough
from .oracle import judge
from .test_ledger_properties import comparable
from .writers_oracle import Process, entries_that_count


@st.composite
def several_writers(draw: st.DrawFn) -> tuple[list[Process], float]:
    """The entries of the processes of one job, and the second of the query."""
    processes: list[Process] = []
    now = 0.0
    for number in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from([f"host-{number}", f"host-{number}", ""]))
        index = draw(st.sampled_from([0, 0, 0, 1, 2]))
        process = Process(index, name, draw(st.sampled_from(["", "", "", "0", "1"])))
        twin = draw(st.sampled_from([*processes, None])) if processes else None
        job = History()
        if twin is not None:  # The same attempt, seen by another process.
            late = draw(st.sampled_from([0.0, 0.25, 40.0]))
            job.payloads += [_later(entry, late) for entry in twin.payloads if draw(st.integers(0, 9))]
        else:
            now = max(0.0, now - draw(st.sampled_from([0, 0, 0.25, 5, 25, 100])))
            done = 0
            for _ in range(draw(st.sampled_from([1, 1, 2]))):
                now, done = live_one_attempt(draw, job, now, done)
            if draw(st.booleans()):
                lay_over(draw, job, now)
            if draw(st.integers(0, 4)) == 0:  # It goes on for long.
                job.steps(range(done, done + 8), at=now, each=draw(st.sampled_from([1, 20])))
        process.payloads = [entry for entry in job.payloads if draw(st.integers(0, 29))]
        if draw(st.integers(0, 3)) == 0:  # It stops before its job does.
            process.payloads = process.payloads[: draw(st.integers(0, len(process.payloads)))]
        if any((one.name or one.index) == (process.name or process.index) for one in processes):
            continue
        processes.append(process)
    end = max((last_moment(process) for process in processes), default=0.0)
    return processes, end + draw(st.sampled_from([0, 0.5, 20]))


def last_moment(process: Process) -> float:
    job = History()
    job.payloads = process.payloads
    return job.last_moment() if any("event_type" not in entry for entry in process.payloads) else 0.0


def _later(entry: Payload, seconds: float) -> Payload:
    def is_moment(key: str) -> bool:
        return key.endswith(("_time", "_ended")) and isinstance(entry[key], float)

    return {key: value + seconds if is_moment(key) else value for key, value in entry.items()}


def writer_of(process: Process) -> Writer:
    return Writer(process.index, process.name, process.attempt)


def recorders_of(processes: list[Process]) -> Recorders:
    recorders = Recorders(JOB)
    for process in processes:
        recorders.add(writer_of(process), process.payloads)
    return recorders


def saved_and_restored(recorders: Recorders) -> Recorders:
    state, columns = recorders.to_state()
    state = json.loads(json.dumps(state))
    return Recorders.from_state(JOB, state, columns_of(Recorders.column_shapes(state), columns))


def contents_of(recorders: Recorders, now: float) -> tuple[Any, ...]:
    ledger, now_ns = recorders.ledger, moment_ns(now)
    attempts = ledger.attempts(now_ns)
    return (
        ledger.summary(now_ns),
        ledger.timeline(now_ns),
        attempts,
        ledger.disruptions(attempts),
        recorders.notes(),
        recorders.writers(),
        recorders.fact_count,
    )


def two_ends_of_steps_at_one_time() -> tuple[list[Process], float]:
    """Two processes that record the end of a step at the same time, one of them with the start of a data load."""
    first, second = Process(0, "host-0"), Process(0, "host-1")
    first.payloads = History().step_end(0, at=0.5).payloads
    second.payloads = History().add(step_end_count=-1, data_loading_start_time=BASE + 0.5).end(1.25).payloads
    return [first, second], 1.25


@thorough(60)
@example(two_ends_of_steps_at_one_time())
@given(several_writers())
def test_the_writers_that_count_follow_the_rules(life: tuple[list[Process], float]) -> None:
    processes, now = life
    summary = recorders_of(processes).ledger.summary(moment_ns(now))
    assert comparable(summary) == comparable(judge(entries_that_count(processes), moment_ns(now)))


@thorough(60)
@given(several_writers(), st.data())
def test_order_repetition_and_lateness_change_nothing(life: tuple[list[Process], float], data: st.DataObject) -> None:
    """Nor do queries on the way, or a saved state from which another process continues."""
    processes, now = life
    entries = [(process, entry) for process in processes for entry in process.payloads]
    again = data.draw(st.lists(st.sampled_from(entries), max_size=10)) if entries else []
    delivered = data.draw(st.permutations(entries + again))
    if data.draw(st.booleans()):  # Nearly in order of time, as logs are.
        delivered = entries + again
    cuts = sorted(data.draw(st.lists(st.integers(0, len(delivered)), max_size=6)))
    recorders = Recorders(JOB)
    for start, end in zip([0, *cuts], [*cuts, len(delivered)], strict=True):
        batches: dict[Process, list[Payload]] = {}
        for process, entry in delivered[start:end]:
            batches.setdefault(process, []).append(entry)
        for process, batch in batches.items():
            recorders.add(writer_of(process), batch)
        if data.draw(st.booleans()):
            assert sum(recorders.ledger.summary(moment_ns(now)).buckets.values()) >= 0 if recorders.fact_count else True
        if data.draw(st.booleans()):
            recorders = saved_and_restored(recorders)
    mine, theirs = contents_of(recorders, now), contents_of(recorders_of(processes), now)
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert one == other, number


@pytest.mark.parametrize("is_queried", [True, False])
def test_a_late_step_from_before_the_first_job_start_is_another_attempt(is_queried: bool) -> None:
    process, other = Process(0, "host-0"), Process(2, "host-2")
    process.payloads = History().init(1, 2).start(3.5).steps([3, 4], at=5.5, each=0.5).step(2, at=2.75).payloads
    other.payloads = History().start(44).payloads
    recorders = Recorders(JOB)
    recorders.add(writer_of(process), process.payloads[:-1])
    recorders.add(writer_of(other), other.payloads)
    if is_queried:
        assert len(recorders.writers()) == 2
    recorders.add(writer_of(process), process.payloads[-1:])
    assert [writer.name for writer in recorders.writers()] == ["host-0", "host-0", "host-2"]
    assert contents_of(recorders, 60) == contents_of(recorders_of([process, other]), 60)


def test_a_fact_that_two_writers_recorded_is_kept_for_each_of_them() -> None:
    """Also where both count: one of them may not count any more once later entries arrive."""
    process, other = Process(1, "host-0"), Process(1, "host-1")
    first = History().start(0).step(2, at=2.75).step_end(2, at=3.25).start(3.5).step(3, at=4.25).payloads
    process.payloads = [*first, *History().step(6, at=6.5).step_end(6, at=7).payloads]
    early = History().step_end(2, at=3.25).step(6, at=6.5).payloads
    other.payloads = [*early, *History().start(3.5).step(3, at=4.25).payloads]
    recorders = Recorders(JOB)
    for part, entries in ((process, first), (other, early)):
        recorders.add(writer_of(part), entries)
    assert [writer.name for writer in recorders.writers()] == ["host-0", "host-1"]
    recorders.add(writer_of(process), process.payloads[len(first) :])
    recorders.add(writer_of(other), other.payloads[len(early) :])
    assert contents_of(recorders, 60) == contents_of(recorders_of([process, other]), 60)


@thorough(60)
@given(several_writers())
def test_every_moment_lies_in_exactly_one_bucket(life: tuple[list[Process], float]) -> None:
    processes, now = life
    summary = recorders_of(processes).ledger.summary(moment_ns(now))
    if summary is not None:
        assert sum(summary.buckets.values()) == summary.wall_ns
        assert min(summary.buckets.values()) >= 0
