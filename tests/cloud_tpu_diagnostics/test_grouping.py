from __future__ import annotations

import pytest
from cloud_tpu_diagnostics._dumps.grouping import (
    ProcessDump,
    ThreadGroup,
    activity_of,
    describe,
    group_processes,
    group_threads,
    main_thread,
    name_processes,
)
from cloud_tpu_diagnostics._dumps.parser import Frame, ThreadStack

STD = "/usr/lib/python3.11"
MODULE = Frame("/job/train.py", 90, "<module>")
BOOTSTRAP = Frame(f"{STD}/threading.py", 1002, "_bootstrap")
PSUM = (Frame("/job/collectives.py", 88, "psum"), Frame("/job/train.py", 40, "step"), MODULE)
DATA = (Frame("/job/dataset.py", 12, "next_batch"), Frame("/job/train.py", 39, "step"), MODULE)
BOOT = (f"{STD}/threading.py", "_bootstrap")
SECOND = 10**9
NOW = 1_790_000_000 * SECOND


def process(number: int, frames: tuple[Frame, ...] = PSUM, *, step: int | None = 4210, age: float = 0.0) -> ProcessDump:
    host = f"host-{number}"
    time_ns = NOW - round(age * SECOND)
    return ProcessDump(host, host, number, 100, step, "step", time_ns, (ThreadStack("0x1", False, frames),))


def test_processes_that_differ_are_named_in_one_sentence() -> None:
    dumps = [process(number) for number in range(128) if number not in (17, 40)]
    dumps += [process(17, DATA, step=4209), process(40, age=92)]
    assert describe(group_processes(dumps)) == (
        "126 of 128 wait in psum (collectives.py:88) at step 4210; "
        "host-17 is in next_batch (dataset.py:12) at step 4209; "
        "host-40 has sent nothing for 92 s"
    )


def test_processes_with_one_stack_are_called_all() -> None:
    dumps = [process(0), process(1, step=4211)]
    assert describe(group_processes(dumps)) == "all 2 wait in psum (collectives.py:88) at steps 4210 to 4211"


def test_a_process_without_any_dump_is_named_by_its_index() -> None:
    dumps = [process(number) for number in range(8) if number != 5]
    picture = group_processes(dumps)
    assert picture.missing == (5,)
    assert describe(picture).endswith("; process 5 has written nothing")


def test_duplicate_indices_report_no_missing_process() -> None:
    dumps = [process(number)._replace(process_index=0) for number in range(4)]
    assert group_processes(dumps).missing == ()


def test_crashes_and_ends_are_reported_together() -> None:
    crash = ThreadStack("0x1", True, DATA)
    dumps = [process(0), process(1)]
    dumps.append(process(2)._replace(headline="Fatal Python error: Segmentation fault", threads=(crash,)))
    dumps += [process(3)._replace(ended="killed"), process(4)._replace(ended="killed")]
    assert describe(group_processes(dumps)) == (
        "2 of 5 wait in psum (collectives.py:88) at step 4210; "
        "host-2 crashed: Fatal Python error: Segmentation fault in next_batch (dataset.py:12); "
        "host-3, host-4: killed"
    )


@pytest.mark.parametrize(("interval", "age", "is_silent"), [(600, 700, False), (600, 901, True), (None, 61, True)])
def test_only_a_process_with_an_overdue_dump_is_silent(interval: float | None, age: float, is_silent: bool) -> None:
    dumps = [process(0)._replace(interval_seconds=interval), process(1, age=age)._replace(interval_seconds=interval)]
    assert bool(group_processes(dumps).silent) == is_silent
    assert group_processes(dumps, silent_after_seconds=age + 1).silent == ()


def test_processes_of_one_host_are_distinguished() -> None:
    same = [process(0)._replace(host="a", process_index=n, pid=10 + n) for n in (0, 1)]
    assert [dump.process for dump in name_processes([*same, process(3)])] == ["a/0", "a/1", "host-3"]
    unknown = [dump._replace(process_index=None) for dump in same]
    assert [dump.process for dump in name_processes(unknown)] == ["a:10", "a:11"]


def test_equal_threads_are_one_group_and_the_main_thread_is_first() -> None:
    wait = (Frame(f"{STD}/threading.py", 320, "wait"), BOOTSTRAP)
    threads = [ThreadStack(f"0x{n}", False, wait) for n in range(5)] + [ThreadStack("0x9", True, PSUM)]
    assert group_threads(threads) == (
        ThreadGroup(PSUM, 1, ("0x9",), True),
        ThreadGroup(wait, 5, ("0x0", "0x1", "0x2"), False),
    )


def test_the_main_thread_of_a_cut_dump_is_the_one_that_stands_alone() -> None:
    others = [ThreadStack(f"0x{n}", False, (BOOTSTRAP,)) for n in range(100)]
    assert main_thread(others) is None
    alone = ThreadStack("", True, PSUM)
    assert main_thread([*others, alone]) is alone
    assert main_thread([]) is None


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([(f"{STD}/concurrent/futures/thread.py", "_worker"), (f"{STD}/threading.py", "run")], "idle worker pool"),
        ([(f"{STD}/queue.py", "get"), (f"{STD}/multiprocessing/pool.py", "worker")], "idle worker pool"),
        ([(f"{STD}/selectors.py", "select"), (f"{STD}/asyncio/base_events.py", "_run_once")], "idle event loop"),
        ([(f"{STD}/selectors.py", "select"), (f"{STD}/socketserver.py", "serve_forever")], "idle server"),
        (
            [(f"{STD}/threading.py", "wait"), (f"{STD}/queue.py", "get"), ("/job/data.py", "next_batch")],
            "waits in next_batch (data.py:1)",
        ),
        ([("/job/data.py", "parse"), (f"{STD}/concurrent/futures/thread.py", "run")], "is in parse (data.py:1)"),
        (
            [(f"{STD}/site-packages/jax/_src/api.py", "block_until_ready"), ("/job/train.py", "step")],
            "waits in block_until_ready (jax/_src/api.py:1), called from step (train.py:1)",
        ),
        ([(f"{STD}/site-packages/cloud_tpu_diagnostics/_collect/timer.py", "_run"), BOOT], "the diagnostics' own"),
        ([("/job/queue.py", "get")], "is in get (queue.py:1)"),
        (
            [("/lib/libc.so.6", "0x7f"), (f"{STD}/threading.py", "Event.wait"), ("/job/a.py", "f")],
            "waits in f (a.py:1)",
        ),
        ([], "has no Python frame"),
    ],
)
def test_the_activity_of_a_thread_is_that_of_its_most_specific_frame(frames: list[tuple[str, str]], text: str) -> None:
    assert activity_of(tuple(Frame(file, 1, function) for file, function in frames)).text == text
