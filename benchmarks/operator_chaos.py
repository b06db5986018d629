"""1,000 connection objects while operators, the API server and the watch fail: the test of that promise, as figures."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.results import Row, Table, seconds

_FILE = "tests/google_cloud_mldiagnostics/kubernetes/test_operator_chaos.py"
_TEST = "test_no_object_of_1000_is_left_without_a_phase_or_claimed_twice_whatever_fails"


def measure(*, quick: bool) -> list[Table]:
    """Run the test, which takes some ten minutes; a quick run leaves it out."""
    if quick:
        return []
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-n0", "-m", "slow", f"{_FILE}::{_TEST}", "--durations=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    happened = next((line for line in lines if "Succeeded" in line), "")
    spent = next((line.split()[0] for line in lines if f"::{_TEST}" in line and "call" in line), "")
    is_kept = done.returncode == 0 and "1 passed" in done.stdout
    none = "0 of 1,000" if is_kept else "see the test's message"
    rows = [
        Row("objects left Pending or Running for ever", none, "", "", "0", is_kept),
        Row("objects claimed twice by two operators", none, "0 of 20", "", "0 of 1,000", is_kept),
        Row("profiles reported that are not whole", none, "", "", "0", is_kept),
        Row("objects by their ends; faults; phases of deleted objects", happened),
    ]
    if spent.endswith("s"):
        rows.append(Row("duration", seconds(float(spent.removesuffix("s")))))
    note = (
        "Two operators and a real API server behind a proxy. Operators are killed, the API server is killed, and the"
        " watch is frozen, at random; objects are deleted in each phase. Compared with the prototype of the design."
    )
    return [Table("1,000 objects amid faults", note, rows)]
