"""diagnose(): the cost of a block, the dumps of a hang, the pause of a running thread; and tpu-stacks."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.results import Row, Table, seconds

PINS = "reference-diagnostics"

_BLOCK_SECONDS = 0.3
_HANG_SECONDS = 4.5
_INTERVAL_SECONDS = 1
_DEPTH = 24
_KINDS_OF_STACKS = 8
_ROUND_SECONDS = 0.5
_WARM_ROUNDS = 2
_FIND_GAPS_ABOVE_SECONDS = 50e-6
_PROCESSES, _THREADS, _FRAMES = 10_000, 50, 12
_DISTINCT_FILES = 100


def configuration(*, collect: bool = True, cloud: bool = False, interval: float = 600, hangs: bool = False) -> Any:
    """Return a configuration that both accept; only ours watches for hangs."""
    from cloud_tpu_diagnostics.configuration import (
        debug_configuration,
        diagnostic_configuration,
        stack_trace_configuration,
    )

    traces = stack_trace_configuration.StackTraceConfig(
        collect_stack_trace=collect, stack_trace_to_cloud=cloud, stack_trace_interval_seconds=interval
    )
    debug = debug_configuration.DebugConfig(stack_trace_config=traces)
    if hangs:
        from cloud_tpu_diagnostics.configuration import hang_configuration

        debug.hang_config = hang_configuration.HangConfig(enabled=True)
    return diagnostic_configuration.DiagnosticConfig(debug_config=debug)


def write_traces_to(folder: Path) -> None:
    """Replace /tmp/debugging by a folder; in our library, since the reference has no setting for it."""
    from cloud_tpu_diagnostics._collect import trace_file

    trace_file.FOLDER = folder


# --- A block entered and left ---------------------------------------------------------------------------


def enter_and_leave(cloud: bool, interval: float) -> dict[str, float]:
    """Return the seconds to enter the first block of a process, and to leave it a little later."""
    from cloud_tpu_diagnostics import diagnostic

    with contextlib.suppress(ImportError):
        write_traces_to(Path(tempfile.mkdtemp()))
    given = configuration(cloud=cloud, interval=interval)
    block_started = time.perf_counter()
    with diagnostic.diagnose(given):
        entered = time.perf_counter()
        time.sleep(_BLOCK_SECONDS)
        leaving = time.perf_counter()
    left = time.perf_counter()
    with contextlib.suppress(KeyboardInterrupt), diagnostic.diagnose(given):
        time.sleep(_BLOCK_SECONDS)
        raising = time.perf_counter()
        raise KeyboardInterrupt
    return {"enter": entered - block_started, "leave": left - leaving, "interrupted": time.perf_counter() - raising}


def disabled(count: int, repetitions: int) -> dict[str, float]:
    """Return the seconds of a block that collects nothing, and of an empty context manager."""
    from cloud_tpu_diagnostics import diagnostic

    nothing = configuration(collect=False)

    @contextlib.contextmanager
    def empty(_: object) -> Iterator[None]:
        yield

    def tight(block: Callable[[Any], Any]) -> float:
        block_started = time.perf_counter()
        for _ in range(count):
            with block(nothing):
                pass
        return (time.perf_counter() - block_started) / count

    times = [(tight(diagnostic.diagnose), tight(empty)) for _ in range(repetitions)]
    return {name: statistics.median(each[number] for each in times) for number, name in enumerate(("block", "empty"))}


def _blocks(*, quick: bool) -> Table:
    processes = 5 if quick else 15
    count, repetitions = (20_000, 3) if quick else (100_000, 9)
    runs: dict[str, list[dict[str, float]]] = {"direct": [], "companion": [], "reference": []}
    for _ in range(processes):
        runs["direct"].append(process.ours(enter_and_leave, cloud=False, interval=600))
        runs["companion"].append(process.ours(enter_and_leave, cloud=True, interval=600))
    for _ in range(3):
        runs["reference"].append(process.reference(enter_and_leave, pins=PINS, cloud=False, interval=_INTERVAL_SECONDS))
    medians = {
        (name, key): statistics.median(run[key] for run in found) for name, found in runs.items() for key in found[0]
    }
    longest = {(name, key): max(run[key] for run in found) for name, found in runs.items() for key in found[0]}
    rows = []
    for name, what, most in (("direct", "without companion", 0.005), ("companion", "with companion", 0.05)):
        total = statistics.median(run["enter"] + run["leave"] for run in runs[name])
        theirs = medians["reference", "enter"] + medians["reference", "leave"]
        rows.append(
            Row(
                f"entered and left, {what}",
                seconds(total),
                seconds(theirs),
                f"{theirs / total:,.0f} times faster",
                f"< {seconds(most)}",
                total < most,
            )
        )
    for key, what in (("leave", "left"), ("interrupted", "left with a KeyboardInterrupt")):
        for name in ("direct", "companion"):
            mine, theirs = medians[name, key], medians["reference", key]
            rows.append(
                Row(
                    f"{what}, {'without' if name == 'direct' else 'with'} companion",
                    f"{seconds(mine)}, at most {seconds(longest[name, key])}",
                    seconds(theirs) + (", and nothing is turned off" if key == "interrupted" else ""),
                    f"{theirs / mine:,.0f} times faster" if key == "leave" else "",
                    "< 10 ms",
                    mine < 0.01,
                )
            )
    mine = process.ours(disabled, count=count, repetitions=repetitions)
    theirs = process.reference(disabled, pins=PINS, count=count, repetitions=repetitions)
    rows.append(
        Row(
            "a block that collects nothing",
            seconds(mine["block"]),
            f"{seconds(theirs['block'])}; an empty context manager {seconds(mine['empty'])}",
            f"{theirs['block'] / mine['block']:.1f} times faster",
            "< 1 µs",
            mine["block"] < 1e-6,
        )
    )
    note = (
        f"The median of {processes} fresh processes, at their first block, imports included; it lasts"
        f" {_BLOCK_SECONDS} s. The interval is {_INTERVAL_SECONDS} s in the reference, which waits for the rest of it:"
        " with its default, up to 600 s. Ours is at its default."
    )
    return Table("A block of diagnose() entered and left", note, rows)


# --- Hangs ----------------------------------------------------------------------------------------------


def hang(library: str, cloud: bool, folder: str) -> None:
    """Print "stuck", and then wait in C forever: `CDLL` releases the GIL there, `PyDLL` does not."""
    from cloud_tpu_diagnostics import diagnostic

    with contextlib.suppress(ImportError):
        write_traces_to(Path(folder))
    with diagnostic.diagnose(configuration(cloud=cloud, interval=_INTERVAL_SECONDS)):
        _lock_twice(getattr(ctypes, library)(None))


def _lock_twice(library: Any) -> None:
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    sys.stdout.write("stuck\n")
    sys.stdout.flush()
    library.pthread_mutex_lock(mutex)


def _dumps_in_a_hang(python: str, library: str, *, cloud: bool) -> tuple[int, list[float]]:
    """Return the number of dumps with the stuck frame in a hang, and the time that py-spy takes from outside."""
    # The companion of the job, which is killed, may write its last entry while the folder is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stderr = Path(folder, "stderr")
        program = f"from benchmarks import diagnose; diagnose.hang({library!r}, {cloud!r}, {folder + '/d'!r})"
        with stderr.open("wb") as file:
            job = subprocess.Popen(
                [python, "-c", program],
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=process.REPOSITORY,
                env=process.environment_of_a_job({"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local"}),
            )
        assert job.stdout is not None
        assert job.stdout.readline() == b"stuck\n", stderr.read_text()
        stuck_at = time.monotonic()
        spied = [_spy(job.pid) for _ in range(2)]
        time.sleep(stuck_at + _HANG_SECONDS - time.monotonic())
        job.kill()
        job.communicate()
        text = "".join(path.read_text(errors="replace") for path in (stderr, *Path(folder).glob("d/stack_trace_*")))
        return text.count("in _lock_twice"), [took for took in spied if took is not None]


def _spy(pid: int) -> float | None:
    """Return the seconds of a `py-spy dump`; None if it is not installed, or not permitted."""
    beside = Path(sys.executable).with_name("py-spy")
    if not beside.exists():
        return None
    block_started = time.perf_counter()
    done = subprocess.run([str(beside), "dump", "--pid", str(pid)], capture_output=True, check=False)
    return time.perf_counter() - block_started if done.returncode == 0 else None


def _hangs() -> Table:
    reference = str(process.reference_python_of(PINS))
    rows = []
    for library, what in (("CDLL", "the GIL released"), ("PyDLL", "the GIL held")):
        theirs, _ = _dumps_in_a_hang(reference, library, cloud=False)
        for cloud, where in ((False, "to the console"), (True, "to a file, by a companion")):
            mine, spied = _dumps_in_a_hang(sys.executable, library, cloud=cloud)
            spy = f"; py-spy {', '.join(map(seconds, spied))} a dump" if spied else ""
            rows.append(Row(f"{what}, {where}", f"{mine}", f"{theirs}{spy}", "", "4", mine >= 4))
    note = (
        f"Dumps that name the stuck frame, in a hang of {_HANG_SECONDS} s in pthread_mutex_lock at an interval of"
        f" {_INTERVAL_SECONDS} s, until the process is killed. py-spy is run from outside, by whoever notices."
    )
    return Table("Dumps in a hang", note, rows)


# --- The pause of a running thread ----------------------------------------------------------------------


def spin(threads: int, rounds: int, how: str) -> dict[str, list[float]]:
    """Measure how long a thread that always runs, among many idle ones, is stopped in each round.

    Args:
        threads: How many are idle.
        rounds: How many stack traces are taken.
        how: `off`, `block` (all that a block with a companion does), `snapshot`, `faulthandler`, or `py-spy`.

    Returns:
        The longest pause of each round, and the number of threads in the dump.
    """
    _crowd(threads)
    folder = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    write_traces_to(folder / "debugging")
    with contextlib.ExitStack() as stack:
        if how == "block":
            from cloud_tpu_diagnostics import diagnostic

            stack.enter_context(diagnostic.diagnose(configuration(cloud=True, interval=_ROUND_SECONDS)))
        threads_dumped: list[float] = []
        if how not in ("off", "block"):
            beside = threading.Thread(target=_take, args=(how, rounds + _WARM_ROUNDS, threads_dumped), daemon=True)
            beside.start()
        pauses = [_longest_gap(_ROUND_SECONDS) for _ in range(rounds + _WARM_ROUNDS)][_WARM_ROUNDS:]
    if how == "block":
        threads_dumped = [float(entry["threads"]) for entry in _entries(folder, "snapshot")]
    return {"pauses": pauses, "threads": threads_dumped}


def _crowd(count: int) -> None:
    """Start threads that wait, some frames deep, with a few kinds of stacks."""
    gate, started = threading.Lock(), threading.Barrier(count + 1)
    gate.acquire()

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            started.wait()
            gate.acquire()

    for number in range(count):
        threading.Thread(target=deep, args=(_DEPTH - 4 - number % _KINDS_OF_STACKS,), daemon=True).start()
    started.wait()


def _longest_gap(duration: float) -> float:
    """Run, and read the clock all the time."""
    longest, last = 0.0, time.perf_counter()
    until = last + duration
    while last < until:
        now = time.perf_counter()
        if now - last > longest:
            longest = now - last
        last = now
    return longest


def _take(how: str, rounds: int, threads_dumped: list[float]) -> None:
    """Take the stacks of all threads once a round, about in its middle."""
    import faulthandler

    from cloud_tpu_diagnostics._dumps.snapshot import take_snapshot

    time.sleep(_ROUND_SECONDS / 2)
    with tempfile.TemporaryFile() as file:
        for number in range(rounds):
            due = time.monotonic() + _ROUND_SECONDS
            if how == "snapshot":
                snapshot = take_snapshot()
                json.dumps(snapshot.to_json())
                threads_dumped.append(float(snapshot.thread_count))
            elif how == "faulthandler":
                before = file.tell()
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(before)
                threads_dumped.append(float(file.read().count(b"hread 0x")))
            elif number >= _WARM_ROUNDS:
                done = subprocess.run(
                    [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(os.getpid())],
                    capture_output=True,
                    check=False,
                )
                threads_dumped.append(float(done.stdout.count(b"Thread ")))
            time.sleep(max(0.0, due - time.monotonic()))


def _entries(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the payloads of one kind in the journal."""
    from cloud_tpu_diagnostics.entries import LOG_ID
    from ml_diagnostics_common.reader import JournalReader

    payloads = [entry.payload for batch in JournalReader(LOG_ID, root=folder).read_new() for entry in batch]
    return [payload for payload in payloads if payload["kind"] == kind]


def _pauses(*, quick: bool) -> Table:
    rounds = 6 if quick else 30
    methods = ["off", "block", "snapshot", "faulthandler"]
    if Path(sys.executable).with_name("py-spy").exists():
        methods.append("py-spy")
    rows = []
    for threads, most in ((100, 0.01), (1_000, 0.05)):
        runs = {how: process.ours(spin, threads=threads, rounds=rounds, how=how) for how in methods}
        p50 = {how: statistics.median(run["pauses"]) for how, run in runs.items()}
        threads_dumped = {how: max(run["threads"], default=0.0) for how, run in runs.items()}
        others = "; ".join(
            f"{how} {seconds(p50[how])}, {threads_dumped[how]:.0f} threads"
            for how in methods
            if how in ("faulthandler", "py-spy")
        )
        noise = f"nothing at all {seconds(p50['off'])}"
        for how, what in (("snapshot", "a grouped snapshot"), ("block", "an interval of a block with a companion")):
            rows.append(
                Row(
                    f"{threads:,} threads: {what}",
                    f"{seconds(p50[how])} p50, {seconds(max(runs[how]['pauses']))} max",
                    f"{others}; {noise}" if how == "snapshot" else noise,
                    f"1/{p50['faulthandler'] / p50[how]:.1f} of faulthandler's" if how == "snapshot" else "",
                    f"< {seconds(most)}",
                    p50[how] < most,
                )
            )
        rows.append(
            Row(
                "of them dumped",
                f"{threads_dumped['block']:,.0f} of {threads + 1:,}",
                target="all",
                met=threads_dumped["block"] == threads + 1,
            )
        )
    note = (
        f"How long the main thread stands still, which always runs Python; the longest time in each of {rounds} rounds"
        f" of {_ROUND_SECONDS} s with one dump or snapshot in each. The other threads are idle, up to {_DEPTH} frames"
        f" deep, with {_KINDS_OF_STACKS} different stacks. faulthandler.dump_traceback cuts at 100 threads; py-spy"
        " stops the process from outside."
    )
    return Table("The pause of a running thread", note, rows)


# --- tpu-stacks -----------------------------------------------------------------------------------------


def _write_job(folder: Path) -> None:
    """Write the trace files of a job: a hundred different ones, and links to them under other names."""
    for number in range(_PROCESSES):
        path = folder / f"stack_trace_2026_11_21_15_04_05_host-{number}_{100 + number}.txt"
        if number < _DISTINCT_FILES:
            path.write_text(_dump(number))
        else:
            path.hardlink_to(folder / f"stack_trace_2026_11_21_15_04_05_host-{number % _DISTINCT_FILES}"
                             f"_{100 + number % _DISTINCT_FILES}.txt")  # fmt: skip


def _dump(number: int) -> str:
    """Return a dump as faulthandler writes it; in one of a hundred the main thread is in another function."""
    lines = [
        "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every 600 seconds.",
        "Timeout (0:10:00)!",
    ]
    for thread in range(_THREADS):
        lines.append(
            f"Thread 0x{0x7F00_0000_0000 + (number * _THREADS + thread) * 4096:016x} (most recent call first):"
        )
        is_main = thread == _THREADS - 1
        module = "train" if is_main else f"worker{thread % 10}"
        where = "next_batch" if number == 0 and is_main else "psum"
        lines.append(f'  File "/job/lib/python3.11/site-packages/job/{module}.py", line 88 in {where}')
        lines += [
            f'  File "/job/lib/python3.11/site-packages/job/{module}.py", line {100 + frame} in function_{frame}'
            for frame in range(_FRAMES - 1)
        ]
        lines.append("")
    return "\n".join(lines)


def _stacks(*, quick: bool) -> Table:
    repetitions = 1 if quick else 3
    took, sentence = [], ""
    with tempfile.TemporaryDirectory() as folder:
        _write_job(Path(folder))
        for _ in range(repetitions):
            block_started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "cloud_tpu_diagnostics._stacks.cli", "show", folder],
                capture_output=True,
                text=True,
                check=True,
            )
            took.append(time.perf_counter() - block_started)
            sentence = done.stdout.partition("\n")[0]
    assert sentence.startswith("9900 of 10000 wait in psum"), sentence
    value = statistics.median(took)
    row = Row(f"{_PROCESSES:,} processes of {_THREADS} threads", seconds(value), "", "", "< 10 s", value < 10)
    note = (
        f"`tpu-stacks show` over a folder of {_PROCESSES:,} trace files of {_FRAMES} frames a thread, from its start to"
        " its end. They are in the system's cache: the files are names of a hundred different ones."
    )
    return Table("The picture of a large job", note, [row])


def measure(*, quick: bool) -> list[Table]:
    return [_blocks(quick=quick), _hangs(), _pauses(quick=quick), _stacks(quick=quick)]
