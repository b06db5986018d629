"""Entries outlive the process that recorded them, however it ends; forked children are writers of their own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import list_segments, log_directory
from ml_diagnostics_common.reader import JournalReader

from .journals import LOG, new_journal, numbers, read_all, run_python

ENDINGS = {
    "return": "pass",
    "sys.exit": "sys.exit(3)",
    "exception": "raise RuntimeError('the job failed')",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT); time.sleep(30)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "os._exit": "os._exit(4)",
    "abort": "os.abort()",
    "a thread still recording": (
        "threading.Thread(target=lambda: [journal.append({'late': i}) for i in iter(int, 1)], daemon=True).start()"
    ),
}
EXPECTED_STATUS = {
    "return": 0,
    "sys.exit": 3,
    "exception": 1,
    "SIGTERM": -15,
    "SIGINT": -2,
    "SIGKILL": -9,
    "os._exit": 4,
    "abort": -6,
    "a thread still recording": 0,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_everything_recorded_before_death_is_there_after_it(tmp_path: Path, ending: str) -> None:
    script = f"""
import faulthandler, os, signal, sys, threading, time
from pathlib import Path
from ml_diagnostics_common.journal import Journal
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell has its background jobs ignore it.
journal = Journal("goodput_run7", root=Path(sys.argv[1]), labels={{}})
for n in range(1_000):
    journal.append({{"n": n}})
{ENDINGS[ending]}
"""
    finished = run_python(script, tmp_path, check=False)
    assert finished.returncode == EXPECTED_STATUS[ending]
    assert numbers(read_all(tmp_path)) == list(range(1_000))


def test_readers_are_at_it_while_writers_are_killed_in_mid_write(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal
journal = Journal("goodput_run7", root=Path(sys.argv[1]), labels={}, segment_bytes=4 * 2**20)
print("started", flush=True)
n = 0
while True:
    journal.append({"n": n, "big": "x" * 20_000})
    n += 1
"""
    readers = [JournalReader(LOG, root=tmp_path) for _ in range(2)]
    read: list[list[str]] = [[], []]
    found: dict[str, list[int]] = defaultdict(list)
    for round_number in range(4):
        writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        until, before = time.monotonic() + 0.1 + 0.02 * round_number, len(read[0])
        while time.monotonic() < until or len(read[0]) == before:
            for ids, reader in zip(read, readers, strict=True):
                ids += [entry.insert_id for batch in reader.read_new() for entry in batch]
        writer.kill()
        writer.wait()
        writer.stdout.close()
    for ids, reader in zip(read, readers, strict=True):
        ids += [entry.insert_id for batch in reader.read_new() for entry in batch]
    for entry in read_all(tmp_path):
        found[str(entry.context.writer)].append(entry.payload["n"])
    assert len(found) == 4
    assert all(numbers == list(range(len(numbers))) and numbers for numbers in found.values())
    for ids in read:  # Each entry once, none skipped, including lines that were half-written at the time of reading.
        assert len(ids) == len(set(ids)) == sum(map(len, found.values()))


def test_a_next_writer_is_not_disturbed_by_a_half_written_line(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    with Path(list_segments(journal.folder)[0].path).open("ab") as file:
        file.write(b'\n{"t":1763710310000000000,"s":1000')
    journal.append({"n": 1})
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers([entry for batch in reader.read_new() for entry in batch]) == [0, 1]
    assert reader.skipped == {"torn": 1}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("forks", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_forking_under_load_repeats_loses_and_hangs_nothing(tmp_path: Path, forks: int) -> None:
    journal = new_journal(tmp_path, segment_bytes=200_000)
    stop = threading.Event()
    counts = [0, 0]

    def work(thread: int) -> None:
        while not stop.is_set():
            journal.append({"n": counts[thread], "thread": thread, "of": os.getpid()})
            counts[thread] += 1

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    children = []
    try:
        for _ in range(forks):
            child = os.fork()
            if child == 0:
                try:
                    journal.append({"child": os.getpid()})
                    journal.append({"child": os.getpid()})
                finally:
                    os._exit(0 if journal.statistics().written == 2 else 1)
            children.append(child)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    entries = read_all(tmp_path)
    assert len({entry.insert_id for entry in entries}) == len(entries)
    by_child = Counter(entry.payload["child"] for entry in entries if "child" in entry.payload)
    assert by_child == dict.fromkeys(children, 2)
    for entry in entries:
        assert int(entry.context.labels["pid"]) == entry.payload.get("child", os.getpid())
    for number in range(2):
        mine = [entry.payload["n"] for entry in entries if entry.payload.get("thread") == number]
        assert sorted(mine) == list(range(counts[number]))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_does_not_repeat_what_its_parent_still_holds(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file that blocks the path")
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    child = os.fork()
    if child == 0:
        os._exit(0 if journal.statistics() == (0, 0, 0, {}) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert journal.statistics().held == 1
    (tmp_path / "journal").unlink()
    journal.flush()
    assert numbers(read_all(tmp_path)) == [0]


WORKERS = """
import multiprocessing, sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal

def record(root, number):
    Journal("goodput_run7", root=Path(root), labels={}).append({"n": number})

if __name__ == "__main__":
    record(sys.argv[1], -1)
    context = multiprocessing.get_context(sys.argv[2])
    workers = [context.Process(target=record, args=(sys.argv[1], number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_record_however_they_are_started(tmp_path: Path, method: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(WORKERS)
    subprocess.run([sys.executable, str(script), str(tmp_path), method], check=True, timeout=60)
    assert sorted(numbers(read_all(tmp_path))) == [-1, 0, 1]


def test_a_signal_handler_may_record_whatever_it_interrupts(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, segment_bytes=20_000)
    handled = itertools.count()

    def handle(*_: object) -> None:  # It may itself be interrupted by the next signal.
        journal.append({"handled": next(handled)})
        journal.sync(0)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for n in range(20_000):
            journal.append({"n": n})
            if n % 100 == 0:
                journal._fast_until = ""  # The slow path, with its locks, is also interrupted.
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    journal.flush()
    entries = read_all(tmp_path)
    times = next(handled)
    assert times > 10
    assert sorted(numbers(entries)) == list(range(20_000))
    assert sorted(entry.payload["handled"] for entry in entries if "handled" in entry.payload) == list(range(times))


def test_processes_write_one_log_at_once(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal
journal = Journal("goodput_run7", root=Path(sys.argv[1]), labels={}, segment_bytes=100_000)
for n in range(3_000):
    journal.append({"n": n})
"""
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    reader = JournalReader(LOG, root=tmp_path)
    entries = []
    while any(writer.poll() is None for writer in writers):
        entries += [entry for batch in reader.read_new() for entry in batch]
    entries += [entry for batch in reader.read_new() for entry in batch]
    assert Counter(numbers(entries)) == dict.fromkeys(range(3_000), 3)
    assert len({segment.writer for segment in list_segments(log_directory(tmp_path, LOG))}) == 3
