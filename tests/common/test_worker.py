"""Our threads run what they are given, whatever fails, forks or interrupts."""

from __future__ import annotations

import _thread
import functools
import math
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.worker import (
    Interval,
    NoAnswerError,
    Worker,
    call,
    in_parallel,
    results_in_parallel,
    start,
    thread_names,
)

LONG_SECONDS = 30.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(program: str) -> str:
    argv = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


# --- Single tasks -----------------------------------------------------------------------------------------


def test_a_task_has_its_name_while_it_runs() -> None:
    gate, names = threading.Event(), []

    def run_named() -> None:
        names.append(thread_names()[_thread.get_ident()])
        gate.wait(LONG_SECONDS)

    task = start(run_named, "test-task")
    assert task is not None
    assert not task.wait(0)
    gate.set()
    assert task.wait(LONG_SECONDS)
    assert task.wait(math.inf)
    assert names == ["test-task"]
    assert "test-task" not in thread_names().values()


def test_a_task_that_fails_is_counted_under_its_name() -> None:
    before = LOSSES.as_dict().get("test-failure: ZeroDivisionError", 0)
    task = start(lambda: 1 / 0, "test-failure")
    assert task is not None
    assert task.wait(LONG_SECONDS)
    assert isinstance(task.error, ZeroDivisionError)
    assert LOSSES["test-failure: ZeroDivisionError"] == before + 1


def test_a_call_returns_what_its_function_does_or_raises() -> None:
    losses = LOSSES.total()
    assert call(lambda: 7, LONG_SECONDS, "test") == 7
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 / 0, LONG_SECONDS, "test")
    assert LOSSES.total() == losses  # Its caller knows.


def test_a_call_does_not_wait_for_a_function_that_hangs() -> None:
    gate = threading.Event()
    with pytest.raises(NoAnswerError, match=r"no answer within 0.01 s"):
        call(lambda: gate.wait(LONG_SECONDS), 0.01, "test")
    gate.set()


def test_without_threads_there_is_no_task_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert start(lambda: None, "test") is None
    with pytest.raises(NoAnswerError):
        call(lambda: 7, LONG_SECONDS, "test")
    assert not Worker("test").put(lambda: None)


def test_results_of_parallel_calls_have_the_order_of_their_arguments() -> None:
    def halved(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number // 2

    found = in_parallel(halved, range(100))
    assert [one for one in found if not isinstance(one, Exception)] == list(range(50))
    assert [one.args[0] for one in found if isinstance(one, ValueError)] == list(range(1, 100, 2))
    assert in_parallel(halved, []) == []
    assert results_in_parallel(halved, [2, 4], 1) == [1, 2]
    with pytest.raises(ValueError, match="3"):
        results_in_parallel(halved, [2, 3, 5])


def test_a_signal_that_arrives_in_another_thread_interrupts_the_caller_of_calls_in_parallel() -> None:
    """A lock's wait without a limit goes on: only the main thread runs handlers, and nothing wakes it."""

    class InterruptionError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptionError

    is_over, ended = threading.Event(), list[int]()

    def call(number: int) -> None:
        signal.raise_signal(signal.SIGUSR1)  # To the thread that calls it.
        is_over.wait(10)
        ended.append(number)

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(InterruptionError):
            in_parallel(call, [1])
        assert not ended
    finally:
        is_over.set()
        signal.signal(signal.SIGUSR1, previous)


def test_without_threads_parallel_calls_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert in_parallel(abs, [-1, -2]) == [1, 2]


def test_a_parallel_call_that_exits_is_raised_where_its_result_is_waited_for() -> None:
    def exit_once(number: int) -> int:
        if number == 1:
            raise SystemExit(3)
        return number

    raised: list[BaseException] = []

    def run_all() -> None:
        try:
            in_parallel(exit_once, range(3), 1)
        except SystemExit as error:
            raised.append(error)

    task = start(run_all, "test")
    assert task is not None
    assert task.wait(LONG_SECONDS)
    assert [error.args for error in raised] == [(3,)]


# --- Intervals --------------------------------------------------------------------------------------------


def test_delays_of_an_interval_do_not_add_up_and_missed_moments_are_left_out() -> None:
    interval = Interval(10.0, due=100.0)
    assert interval.advance(100.5) == 110.0
    assert interval.advance(110.0) == 120.0
    assert interval.advance(147.0) == 150.0
    assert interval.advance(30.0) == 160.0, "the clock was set back"


# --- Workers ----------------------------------------------------------------------------------------------


def test_a_worker_calls_functions_in_their_order_in_one_thread() -> None:
    worker, calls = Worker("test"), []

    def note(number: int) -> Callable[[], object]:
        return lambda: calls.append((number, _thread.get_ident()))

    assert all(worker.put(note(number)) for number in range(100))
    assert worker.drain(LONG_SECONDS)
    assert [number for number, _ in calls] == list(range(100))
    assert len({ident for _, ident in calls}) == 1
    assert worker.pending_count() == 0
    worker.stop()
    assert worker.wait(LONG_SECONDS)


def test_of_threads_that_put_at_once_one_starts_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, gate = Worker("test"), threading.Barrier(8)
    starts: list[object] = []
    done: list[int] = []
    start_thread = _thread.start_new_thread

    def start_slowly(function: Callable[..., object], given: tuple[object, str]) -> int:
        if given[1] == "test":
            starts.append(function)
            time.sleep(0.05)
        return start_thread(function, given)

    monkeypatch.setattr(_thread, "start_new_thread", start_slowly)

    def put(number: int) -> None:
        gate.wait()
        worker.put(lambda: done.append(number))

    tasks = [start(functools.partial(put, number), "putting") for number in range(8)]
    assert all(task is not None and task.wait(LONG_SECONDS) for task in tasks)
    assert worker.drain(LONG_SECONDS)
    assert sorted(done) == list(range(8))
    assert len(starts) == 1
    worker.stop()


def test_a_worker_that_could_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker("test")
    done: list[int] = []

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        assert not worker.put(lambda: done.append(1))
    assert worker.pending_count() == 0
    assert worker.put(lambda: done.append(2))
    assert worker.drain(LONG_SECONDS)
    assert done == [2]
    worker.stop()


def test_a_function_that_fails_costs_no_other() -> None:
    worker, calls = Worker("test"), []
    worker.put(lambda: 1 / 0)
    worker.put(lambda: calls.append(1))
    assert worker.drain(LONG_SECONDS)
    assert calls == [1]
    worker.stop()


def test_a_function_that_exits_costs_no_other() -> None:
    worker, gate, calls = Worker("test"), threading.Event(), threading.Event()

    def exit_thread() -> None:
        gate.wait(LONG_SECONDS)
        raise SystemExit(3)

    worker.put(exit_thread)
    worker.put(calls.set)
    gate.set()
    assert calls.wait(LONG_SECONDS)
    assert worker.drain(LONG_SECONDS)
    assert worker.pending_count() == 0
    worker.stop()


def test_a_full_inbox_refuses() -> None:
    worker, gate = Worker("test", limit=2), threading.Event()
    assert worker.put(lambda: gate.wait(LONG_SECONDS))
    assert worker.put(lambda: None)
    assert not worker.put(lambda: None)
    gate.set()
    assert worker.drain(LONG_SECONDS)
    assert worker.put(lambda: None)
    worker.stop()


def test_a_drain_waits_a_bounded_time_and_not_for_itself() -> None:
    worker, gate, answers = Worker("test"), threading.Event(), []
    worker.put(lambda: gate.wait(LONG_SECONDS))
    assert not worker.drain(0.01)
    gate.set()
    worker.put(lambda: answers.append(worker.drain(LONG_SECONDS)))
    assert worker.drain(LONG_SECONDS)
    assert answers == [False]
    worker.stop()


def test_what_recurs_is_called_at_the_start_after_each_function_and_when_it_is_due() -> None:
    ticks: list[int] = []
    is_over = threading.Event()

    def tick() -> float | None:
        ticks.append(len(ticks))
        if len(ticks) < 5:
            return 0.0
        is_over.set()
        return None

    worker = Worker("test", tick)
    assert worker.start()
    assert is_over.wait(LONG_SECONDS)
    worker.put(lambda: None)
    assert worker.drain(LONG_SECONDS)
    worker.stop()
    assert worker.wait(LONG_SECONDS)
    assert len(ticks) >= 6


@pytest.mark.parametrize(("returned", "waited"), [(7.0, 7.0), (0.0, 1.0), (None, 60.0)])
def test_a_tick_that_fails_is_called_again_after_its_last_interval(
    monkeypatch: pytest.MonkeyPatch, returned: float | None, waited: float
) -> None:
    results = iter([returned] if returned is not None else [])
    waits: list[float] = []

    def tick() -> float | None:
        return next(results)

    worker = Worker("test", tick)

    class Inbox(queue.SimpleQueue[Callable[[], object]]):
        def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], object]:
            waits.append(math.inf if timeout is None else timeout)
            if len(waits) == 3:
                worker.stop()
            raise queue.Empty

    monkeypatch.setattr(worker, "_inbox", Inbox())
    assert worker.start()
    assert worker.wait(LONG_SECONDS)
    assert waits[-2:] == [waited, waited]


def test_an_idle_worker_ends_and_starts_again() -> None:
    worker, idents = Worker("test", idle_seconds=0.01), []
    for _ in range(3):
        assert worker.put(lambda: idents.append(_thread.get_ident()))
        assert worker.drain(LONG_SECONDS)
        assert worker.wait(LONG_SECONDS)
    assert len(idents) == 3


def test_no_function_is_lost_while_an_idle_worker_ends() -> None:
    worker, count = Worker("test", idle_seconds=0.0), 2_000
    calls: list[int] = []
    for number in range(count):
        assert worker.put(lambda number=number: calls.append(number))  # type: ignore[misc]
    assert worker.drain(LONG_SECONDS)
    assert calls == list(range(count))


def test_a_stopped_worker_calls_nothing_more() -> None:
    worker, gate, calls = Worker("test"), threading.Event(), []
    worker.put(lambda: gate.wait(LONG_SECONDS))
    worker.put(lambda: calls.append(1))
    worker.stop()
    assert not worker.put(lambda: calls.append(2))
    gate.set()
    assert worker.wait(LONG_SECONDS)
    assert not calls


def test_a_worker_keeps_nothing_of_a_function_that_returned() -> None:
    class Array: ...

    worker, array = Worker("test"), Array()
    reference = weakref.ref(array)
    worker.put(lambda array=array: None)  # type: ignore[misc]
    del array
    assert worker.drain(LONG_SECONDS)
    assert reference() is None
    worker.stop()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_signal_handlers_put_and_drain_amid_each_other() -> None:
    out = run("""
        import signal
        from ml_diagnostics_common.worker import Worker
        worker, calls, handled, depth = Worker("test", idle_seconds=0.0), [], [], [0]
        def handle(*_):
            depth[0] += 1
            if depth[0] < 20:  # Handlers interrupt each other, but not without end on a slow machine.
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
            worker.put(lambda: calls.append(1))
            handled.append(worker.drain(10))
            depth[0] -= 1
            if len(calls) < 6_000:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        for _ in range(3_000):
            worker.put(lambda: calls.append(1))
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        assert worker.drain(10)
        print(len(calls) - len(handled), all(handled), len(handled) > 0)
    """)
    assert out == "3000 True True\n"


@needs_fork
def test_a_forked_child_has_a_worker_that_starts_clean() -> None:
    out = run("""
        import os, threading, sys
        from ml_diagnostics_common.worker import Worker, thread_names
        worker, gate = Worker("test"), threading.Event()
        worker.put(gate.wait)
        worker.put(lambda: print("the parent's", flush=True))
        pid = os.fork()
        if pid == 0:
            assert worker.pending_count() == 0 and not thread_names()
            worker.put(lambda: print("the child's", flush=True))
            os._exit(not worker.drain(10))
        assert os.waitpid(pid, 0)[1] == 0
        gate.set()
        worker.drain(10)
    """)
    assert out == "the child's\nthe parent's\n"


@needs_fork
@pytest.mark.parametrize("forks_in", ["function", "tick"])
def test_a_child_that_a_worker_forks_ends_with_its_function(forks_in: str) -> None:
    out = run(f"""
        import os, time
        from ml_diagnostics_common.guard import LOSSES
        from ml_diagnostics_common.worker import Worker
        parent, pids = os.getpid(), []
        def fork():
            pids or pids.append(os.fork())
            if os.getpid() != parent:
                print("the child's", flush=True)
        def tick():
            if "{forks_in}" == "tick":
                fork()
            return 0.01
        worker = Worker("test", tick)
        worker.put(fork if "{forks_in}" == "function" else int)
        assert worker.drain(10)
        deadline = time.monotonic() + 20
        while not (ended := os.waitpid(pids[0], os.WNOHANG)[0]) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not ended:
            os.kill(pids[0], 9)
        worker.put(lambda: print("the parent's", bool(ended), LOSSES.as_dict(), flush=True))
        assert worker.drain(10)
    """)
    assert out == "the child's\nthe parent's True {}\n"


def test_a_worker_that_waits_holds_no_exit_up() -> None:
    out = run("""
        import threading
        from ml_diagnostics_common.worker import Worker
        Worker("test").put(threading.Event().wait)
    """)
    assert out == ""
