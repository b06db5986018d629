"""Run a command to its end, and measure its time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import process

_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Finished:
    """The result of a command.

    Attributes:
        seconds: The time from its start to its end.
        mib: The most memory that it, or one of the programs that it started, has had at once.
        out: Its standard output.
        err: Its standard error.
        code: Its exit code.
    """

    seconds: float
    mib: float
    out: str
    err: str
    code: int


def run(argv: Sequence[str], environment: Mapping[str, str], *, typed: str = "", code: int = 0) -> Finished:
    """Run a command.

    Args:
        argv: The program and its arguments.
        environment: The variables that are set for it; those that a user has set for ours are not inherited.
        typed: The text that is typed while it runs.
        code: The exit code with which it must end.

    Raises:
        AssertionError: It ended with another code.
    """
    measured = [sys.executable, "-m", "benchmarks.commands", *argv]
    done = subprocess.run(
        measured,
        cwd=process.REPOSITORY,
        env=process.environment_of_a_job(dict(environment)),
        input=typed,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    err, _, usage = done.stderr.rstrip("\n").rpartition("\n")
    seconds, kib = usage.split()
    finished = Finished(float(seconds), int(kib) / 1024, done.stdout, err, done.returncode)
    assert finished.code == code, f"{' '.join(argv)} ended with {finished.code}:\n{finished.err[-2000:]}"
    return finished


def median(runs: Sequence[Finished]) -> Finished:
    """Return the run with the median duration."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def ours() -> str:
    """Return the path of our `xprofiler`."""
    return str(Path(sys.executable).with_name("xprofiler"))


def reference() -> str:
    """Return the path of the public command, in an environment of its own."""
    return str(process.reference_python_of("reference-xprofiler").with_name("xprofiler"))


def _measured() -> int:
    """Run in a process of its own with the command as its only child: the system reports the memory of children."""
    started = time.perf_counter()
    code = subprocess.run(sys.argv[1:], env=os.environ, check=False).returncode
    took = time.perf_counter() - started
    print(f"\n{took:.6f} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(_measured())
