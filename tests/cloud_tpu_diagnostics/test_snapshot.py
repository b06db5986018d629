from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._dumps.grouping import ThreadGroup
from cloud_tpu_diagnostics._dumps.parser import Frame
from cloud_tpu_diagnostics._dumps.snapshot import Snapshot, SnapshotHistory, Unchanged, describe, take_snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..waiting import wait_until

_ON_A_BUSY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def waits_in_reader(release: threading.Event) -> None:
    release.wait()


@pytest.fixture
def readers(release: threading.Event) -> Iterator[list[threading.Thread]]:
    """Start seven threads with one stack."""
    threads = [threading.Thread(target=waits_in_reader, args=(release,), name=f"reader-{n}") for n in range(7)]
    for thread in threads:
        thread.start()
    _wait_until_all_are_in("waits_in_reader", threads)
    yield threads
    release.set()
    for thread in threads:
        thread.join()


def _wait_until_all_are_in(function: str, threads: Collection[threading.Thread]) -> None:
    """Wait until these threads sleep in a function, all at one line."""

    def are_there() -> bool:
        stats = [Path(f"/proc/self/task/{thread.native_id}/stat").read_text() for thread in threads]
        groups = [
            group for group in take_snapshot().groups if any(frame.function == function for frame in group.frames)
        ]
        sizes = [group.threads for group in groups]
        return all(stat.rpartition(") ")[2][0] == "S" for stat in stats) and sizes == [len(threads)]

    wait_until(are_there)


def _group_in(snapshot: Snapshot, function: str) -> ThreadGroup:
    (group,) = [group for group in snapshot.groups if any(frame.function == function for frame in group.frames)]
    return group


def test_threads_with_one_stack_are_one_group(readers: list[threading.Thread]) -> None:
    group = _group_in(take_snapshot(), "waits_in_reader")
    assert (group.threads, group.has_main) == (7, False)
    assert set(group.names) <= {thread.name for thread in readers}
    reader = next(frame for frame in group.frames if frame.function == "waits_in_reader")
    assert reader.file == __file__
    assert reader.line == waits_in_reader.__code__.co_firstlineno + 1


def test_the_main_thread_is_first_even_if_it_takes_the_snapshot(readers: list[threading.Thread]) -> None:
    snapshot = take_snapshot()
    assert snapshot.groups[0].has_main
    assert snapshot.groups[0].frames[0].function == test_the_main_thread_is_first_even_if_it_takes_the_snapshot.__name__
    assert sum(group.threads for group in snapshot.groups) == snapshot.thread_count == len(sys._current_frames())


def test_the_calling_thread_and_given_threads_are_left_out(readers: list[threading.Thread]) -> None:
    def count() -> None:
        counts.append(take_snapshot().thread_count)
        counts.append(take_snapshot(leave_out={thread.ident or 0 for thread in readers}).thread_count)

    counts: list[int] = []
    total = len(sys._current_frames())
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert counts == [total, total - 7]


def test_no_variable_of_the_job_is_kept_alive() -> None:
    class Array:
        pass

    def holds() -> None:
        array = Array()
        alive.append(weakref.ref(array))
        ready.set()
        leave.wait()

    alive: list[weakref.ref[Array]] = []
    ready, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=holds)
    thread.start()
    ready.wait()
    snapshot = take_snapshot()
    leave.set()
    thread.join()
    assert alive[0]() is None
    assert _group_in(snapshot, "holds").threads == 1


def test_the_description_has_a_sentence_for_each_group(readers: list[threading.Thread]) -> None:
    with ThreadPoolExecutor(4) as pool:
        all_here = threading.Barrier(4)
        list(pool.map(lambda _: all_here.wait(), range(4)))
        _wait_until_all_are_in("_worker", pool._threads)
        history = SnapshotHistory()
        for minute in range(8):
            snapshot = take_snapshot()
            unchanged = history.seen(snapshot, now_ns=minute * 600 * 10**9)
        text = describe(snapshot, unchanged)
    lines = text.splitlines()
    assert lines[0] == f"{snapshot.thread_count} threads in {len(snapshot.groups)} groups of equal stacks"
    assert lines[1].startswith(
        "main thread: is in test_the_description_has_a_sentence_for_each_group (test_snapshot.py:"
    )
    assert "7 threads (reader-0, reader-1, reader-2 and 4 more): wait in waits_in_reader (test_snapshot.py:" in text
    (pool_line,) = [line for line in lines if line.startswith("4 threads (ThreadPoolExecutor-")]
    assert pool_line.endswith(": idle worker pool; the same for 7 snapshots, 1 h 10 min")


def test_a_stack_that_changes_starts_a_new_count() -> None:
    def snapshot(line: int) -> Snapshot:
        still = ThreadGroup((Frame("a.py", 1, "f"),), 3, ("x",), False)
        return Snapshot((ThreadGroup((Frame("m.py", line, "main"),), 1, ("MainThread",), True), still), 4, 0)

    history = SnapshotHistory()
    assert history.seen(snapshot(1), now_ns=0) == (Unchanged(0, 0.0), Unchanged(0, 0.0))
    assert history.seen(snapshot(2), now_ns=60 * 10**9) == (Unchanged(0, 0.0), Unchanged(1, 60.0))
    assert history.seen(snapshot(2), now_ns=90 * 10**9) == (Unchanged(1, 30.0), Unchanged(2, 90.0))


_frames = st.builds(Frame, st.text(max_size=20), st.integers(0, 10**9), st.from_regex(r"[^ ()]{1,12}", fullmatch=True))
_groups = st.builds(
    ThreadGroup,
    st.lists(_frames, max_size=4).map(tuple),
    st.integers(1, 10**6),
    st.lists(st.text(max_size=10), max_size=3).map(tuple),
    st.booleans(),
)


@_ON_A_BUSY_MACHINE
@given(st.lists(_groups, max_size=4), st.integers(0, 2**62))
def test_a_snapshot_is_the_same_after_json(groups: list[ThreadGroup], time_ns: int) -> None:
    snapshot = Snapshot(tuple(groups), sum(group.threads for group in groups), time_ns)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@_ON_A_BUSY_MACHINE
@given(
    st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_an_invalid_snapshot_is_refused_with_one_error(encoded: object) -> None:
    for value in ({"groups": encoded, "threads": 1}, {"groups": [], "threads": encoded}, {"groups": [encoded]}):
        try:
            read = Snapshot.from_json(value)
        except ValueError:
            continue
        assert Snapshot.from_json(read.to_json()) == read


def test_a_snapshot_of_very_many_stacks_fits_into_an_entry() -> None:
    groups = tuple(ThreadGroup((Frame("f.py", n, "g" * 100),) * 50, 1, (str(n),), n == 0) for n in range(1000))
    encoded = Snapshot(groups, 1000, 0).to_json()
    assert len(str(encoded)) < 200_000
    assert encoded["left_out"] == 1000 - len(encoded["groups"])
    assert encoded["groups"][0]["main"]


def test_a_running_thread_continues_while_300_others_are_read(release: threading.Event) -> None:
    threads = [threading.Thread(target=waits_in_reader, args=(release,), daemon=True) for _ in range(300)]
    for thread in threads:
        thread.start()
    taken: list[float] = []

    def take() -> None:
        while sum(taken) < 0.5:  # Many turns of the interpreter, however fast the machine reads.
            started = time.perf_counter()
            take_snapshot()
            taken.append(time.perf_counter() - started)

    taker = threading.Thread(target=take)
    turns = 0
    taker.start()
    while taker.is_alive():
        turns += 1
    release.set()
    assert sum(taken) >= 0.5
    assert turns > 100
