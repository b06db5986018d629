"""One set of hooks for forks and the exit: all are called, in their order, in the process that they concern."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from ml_diagnostics_common.process_hooks import LiveObjects

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(program: str) -> str:
    argv = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def test_exit_functions_are_called_in_their_order_late_and_whatever_fails() -> None:
    out = run("""
        import atexit
        from ml_diagnostics_common.process_hooks import ExitOrder, at_exit, at_exit_from_now
        at_exit(lambda: print("journals"), ExitOrder.JOURNALS)
        at_exit(lambda: print("shippers") or 1 / 0, ExitOrder.SHIPPERS)
        atexit.register(print, "another library")
        early = lambda: print("early")
        at_exit_from_now(early)
        at_exit_from_now(early)
        atexit.register(print, "the program")
    """)
    assert out.splitlines() == ["the program", "early", "another library", "shippers", "journals"]


@needs_fork
def test_a_forked_child_calls_what_starts_it_clean_and_no_early_exit_function() -> None:
    out = run("""
        import os, sys
        from ml_diagnostics_common.guard import LOSSES
        from ml_diagnostics_common.process_hooks import at_exit_from_now, at_fork
        at_fork(lambda: 1 / 0)
        at_fork(lambda: print("a child", flush=True))
        at_exit_from_now(lambda: print("exit of", "the parent", flush=True))
        pid = os.fork()
        if pid == 0:
            assert LOSSES["in a forked child: ZeroDivisionError"] == 1
            sys.exit()
        assert os.waitpid(pid, 0)[1] == 0
    """)
    assert out.splitlines() == ["a child", "exit of the parent"]


@needs_fork
def test_a_fork_waits_for_its_locks_and_leaves_them_free() -> None:
    out = run("""
        import os, threading
        from ml_diagnostics_common.process_hooks import ForkLock
        lock, has_lock, steps = ForkLock(), threading.Event(), []
        def hold():
            with lock.held():
                has_lock.set()
                threading.Event().wait(0.2)
                steps.append("released")
        thread = threading.Thread(target=hold)
        thread.start()
        has_lock.wait()
        pid = os.fork()
        if pid == 0:
            with lock.held():
                os._exit(steps != ["released"])
        with lock.held():
            print(os.waitpid(pid, 0)[1])
    """)
    assert out == "0\n"


def test_live_objects_change_while_they_are_iterated_over() -> None:
    class Kind: ...

    kept = [Kind() for _ in range(3)]
    live: LiveObjects[Kind] = LiveObjects()
    for each in kept:
        live.add(each)
    is_over = threading.Event()

    def churn() -> None:
        while not is_over.is_set():
            live.add(Kind())

    thread = threading.Thread(target=churn)
    thread.start()
    for _ in range(2_000):
        assert set(kept) <= set(live)
    is_over.set()
    thread.join()
    live.discard(kept[0])
    del kept[1], each
    gc.collect()
    assert list(live) == [kept[1]]
