"""The output of a job under `python -m cloud_tpu_diagnostics run`: its cost for the job, and its memory."""

from __future__ import annotations

import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Row, Table, seconds

_RUN = (sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--")
_LINE_BYTES = 1000
_MIB = 2**20

_JOB = """
import hashlib, sys, time
count, report = int(sys.argv[1]), sys.argv[2]
digest, line = hashlib.sha256(), "x" * 990
started = time.perf_counter()
for number in range(count):
    print(f"{number:08d} {line}", flush=True)
spent = time.perf_counter() - started
for number in range(count):
    digest.update(f"{number:08d} {line}\\n".encode())
open(report, "w").write(f"{spent / count} {digest.hexdigest()}")
"""


def print_lines(prefix: Sequence[str], count: int, folder: Path) -> tuple[float, bool, int]:
    """Return the seconds of a line for the job, if all bytes arrived, and the most bytes of memory for its output."""
    from tests.cloud_tpu_diagnostics.accompanied_jobs import output_bytes_in_memory

    report, received = folder / "report", folder / "received"
    environment = {
        **os.environ,
        "ML_DIAGNOSTICS_DIR": str(folder),
        "ML_DIAGNOSTICS_BACKEND": "local",
        "PYTHONUNBUFFERED": "1",
    }
    job = [*prefix, sys.executable, "-c", _JOB, str(count), str(report)]
    most_bytes = 0
    with (
        received.open("wb") as file,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as reader,
        subprocess.Popen(job, stdout=reader.stdin, env=environment) as process,
    ):
        while process.poll() is None:
            most_bytes = max(most_bytes, output_bytes_in_memory(process.pid))
            time.sleep(0.01)
        if reader.stdin is not None:
            reader.stdin.close()
    line_seconds, digest = report.read_text().split()
    return float(line_seconds), hashlib.sha256(received.read_bytes()).hexdigest() == digest, most_bytes


def measure(*, quick: bool) -> list[Table]:
    """Measure the benchmark's table."""
    count, repetitions = (6_500, 2) if quick else (65_000, 5)
    piped, passed_on, memory, cpu = [], [], [], []
    is_whole = True
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            piped.append(print_lines((), count, Path(folder))[0])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            line_seconds, is_equal, most_bytes = print_lines(_RUN, count, Path(folder))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        passed_on.append(line_seconds)
        memory.append(most_bytes)
        is_whole = is_whole and is_equal
    ours, theirs = statistics.median(passed_on), statistics.median(piped)
    size = f"{count * _LINE_BYTES / 1e6:.0f} MB"
    rows = [
        Row(
            "a flushed line of 1 kB, for the job",
            seconds(ours),
            f"{seconds(theirs)} to a pipe that is read at once",
            f"{ours / theirs:.2f}",
        ),
        Row(f"{size} passed on, byte for byte", "yes" if is_whole else "no", "", "", "yes", is_whole),
        Row(
            f"memory that {size} of lines take, at most",
            f"{max(memory) / _MIB:.1f} MiB",
            "prototype 4 MiB",
            "",
            "<= 8 MiB",
            max(memory) <= 8 * _MIB,
        ),
        Row(f"CPU of the job, its reader and `run` for {size}", seconds(statistics.median(cpu))),
    ]
    note = (
        "Lines of a Python program, through `run` to a reader (`cat`), beside the same program that prints to the"
        " reader; both with PYTHONUNBUFFERED=1, which `run` sets."
    )
    return [Table("The output of a job under `run`", note, rows)]
