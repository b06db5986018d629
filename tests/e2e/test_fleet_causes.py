"""Jobs that one host ends make it a listed host: journals, mirror, rows, the doctor, `goodput fleet hosts`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_console.faultbench import _simulated_host
from ml_diagnostics_fleet.rows_files import newest_rows, read_table

from ..fleet.blamed_runs import HOSTS, BlamedRun, rows_of_mirror

pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")

GOODPUT = Path(sys.executable).with_name("goodput")
DAY_NS = 86_400 * 10**9


def run(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [str(GOODPUT), "fleet", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, env={**os.environ, **environ})


def data_of(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def disruptions(mirror: Path) -> list[dict[str, Any]]:
    snapshot = newest_rows(mirror)
    assert snapshot is not None
    rows: list[dict[str, Any]] = read_table(mirror, snapshot, "disruptions").to_pylist()
    return rows


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / "diagnostics"))
    return tmp_path / "diagnostics"


def test_the_host_that_is_killed_again_and_again_is_listed(root: Path, tmp_path: Path) -> None:
    now_ns, mirror = time.time_ns(), tmp_path / "mirror"
    BlamedRun(root, "llama-7", now_ns - 2 * DAY_NS, [3, 3, 1, 3, 3, 3]).write()
    BlamedRun(root, "llama-8", now_ns - DAY_NS, [3, 3, 0, 3, 3, None]).write()
    rows_of_mirror(root, mirror, now_ns)
    assert "none can be listed" in run("hosts", "--mirror", mirror).stdout

    done = run("causes", "--mirror", mirror)
    assert (done.returncode, done.stdout) == (0, "12 disruptions judged: C7 11, U0 1; 11 of them by a host\n"), done
    named = {(row["job"], row["number"]): row["cause_host"] for row in disruptions(mirror)}
    expected = [("llama-7", host) for host in (3, 3, 1, 3, 3, 3)] + [("llama-8", host) for host in (3, 3, 0, 3, 3)]
    numbers = [*range(1, 7), *range(1, 6)]
    assert {key: host for key, host in named.items() if host} == {
        (job, number): HOSTS[host] for (job, host), number in zip(expected, numbers, strict=True)
    }
    found = data_of("hosts", "--mirror", mirror)
    assert [(one["host"], one["blamed"], one["causes"]) for one in found["listed"]] == [("tpu-3", 9, {"C7": 9})]
    assert "\n\ncauses of tpu-3: C7 9\n" in run("hosts", "--mirror", mirror).stdout
    assert (found["blamed"], found["absent"]) == (11, 0)
    (group,) = found["groups"]
    assert group["hosts"] == len(HOSTS)  # Only the first of them records goodput.

    again = run("causes", "--mirror", mirror)
    # Only what is possible is asked about again: entries of the other hosts may arrive yet.
    assert (again.returncode, again.stdout) == (0, "1 disruption judged: U0 1; 0 of them by a host\n"), again


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        ({"how": "exception", "exception": "ValueError", "exception_text": "batch 12 is empty"}, "C1"),
        ({"how": "signal", "signal": "SIGTERM", "was_asked": True}, "C4"),
        ({"how": "exception", "exception": "JaxRuntimeError", "exception_text": "UNAVAILABLE: heartbeat"}, None),
    ],
    ids=["program", "preemption", "unsure"],
)
def test_a_doctor_that_blames_no_host_lists_none(
    root: Path, tmp_path: Path, end: dict[str, Any], rule: str | None
) -> None:
    now_ns, mirror = time.time_ns(), tmp_path / "mirror"
    for days, job in enumerate(("llama-7", "llama-8"), 1):  # A host has a process id only once at a time.
        BlamedRun(root, job, now_ns - days * DAY_NS, [3] * 7, end={"message": "ended", **end}).write()
    rows_of_mirror(root, mirror, now_ns)
    done = data_of("causes", "--mirror", mirror)
    assert (done["judged"], done["blamed"]) == (14, 0)
    assert rule is None or done["causes"] == {rule: 14}
    assert {row["cause_host"] for row in disruptions(mirror)} == {None}
    assert None not in {row["cause"] for row in disruptions(mirror)}
    assert data_of("hosts", "--mirror", mirror)["listed"] == []


def test_a_job_that_the_doctor_does_not_know_is_not_blamed_on_anyone(root: Path, tmp_path: Path) -> None:
    now_ns, mirror = time.time_ns(), tmp_path / "mirror"
    BlamedRun(root, "llama-7", now_ns - 2 * DAY_NS, [3, 3]).write()
    rows_of_mirror(root, mirror, now_ns)
    done = run("causes", "--mirror", mirror, ML_DIAGNOSTICS_DIR=str(tmp_path / "elsewhere"))
    assert (done.returncode, done.stdout) == (0, "0 disruptions judged\n"), done
    assert "2 disruptions of attempts that the doctor does not know" in done.stderr
    assert {row["cause"] for row in disruptions(mirror)} == {None}


def test_bad_input_is_a_clear_error(root: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    assert run("causes", "--mirror", mirror).returncode == 3
    BlamedRun(root, "llama-7", time.time_ns() - 2 * DAY_NS, [3]).write()
    rows_of_mirror(root, mirror, time.time_ns())
    unknown = run("causes", "llama-9", "--mirror", mirror)
    assert unknown.returncode == 3
    assert "no rows of the job llama-9" in unknown.stderr
    assert run("causes", "--mirror", mirror, "--since", "yesterday").returncode == 2
    assert run("causes", ML_DIAGNOSTICS_MIRROR="").returncode == 2
    (mirror / "v1" / "dimensions").mkdir(exist_ok=True)
    (mirror / "v1" / "dimensions" / "causes.parquet").write_bytes(b"not Parquet")
    for part in ("causes", "run"):
        damaged = run(part, "--mirror", mirror)
        assert (damaged.returncode, damaged.stdout) == (2, "")
        assert "dimensions/causes.parquet is not a Parquet file" in damaged.stderr
        assert "Traceback" not in damaged.stderr


_WITHOUT_DOCTOR = """
import importlib.metadata, sys
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **group: () if group["group"].endswith(".doctors") else found(**group)
from ml_goodput_measurement.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_doctor_the_command_says_what_to_install(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _WITHOUT_DOCTOR, "fleet", "causes", "--mirror", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "pip install ml-diagnostics-console" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("part", ["causes", "run", "compact"])
def test_without_pyarrow_the_command_says_what_to_install(part: str, tmp_path: Path) -> None:
    without = "import sys; sys.modules['pyarrow'] = None; from ml_goodput_measurement.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", without, "fleet", part, "--mirror", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "needs pyarrow" in done.stderr
    assert "pip install ml-diagnostics-fleet" in done.stderr
    assert "Traceback" not in done.stderr


_TRAINER = """
import os, sys, time
import ml_diagnostics
from pathlib import Path

class JaxRuntimeError(RuntimeError): pass

def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False

index, first, last, dies, folder = int(os.environ["JAX_PROCESS_ID"]), *map(int, sys.argv[1:4]), Path(sys.argv[4])
with ml_diagnostics.instrument("digits") as job:
    for step, _ in job.steps(range(first, last), start=first):
        time.sleep(0.01)
        if dies and step == last - 5:
            (folder / f"at-{first}-{index}-{os.getpid()}").touch()
            while not (others := list(folder.glob(f"at-{first}-{1 - index}-*"))):
                time.sleep(0.01)
            if index == 1:
                os.kill(os.getpid(), 9)
            while is_alive(int(others[0].name.rpartition("-")[2])):
                time.sleep(0.01)
            time.sleep(1.5)
            raise JaxRuntimeError("UNAVAILABLE: task 1 stopped sending heartbeats")
"""


def attempt(folder: Path, number: int, dies: bool) -> None:
    """Run one attempt of a job of two hosts, each as its own machine."""
    (folder / "train.py").write_text(_TRAINER)
    (folder / "scripts").mkdir(exist_ok=True)
    first = number * 35
    arguments = [str(folder / "train.py"), str(first), str(first + 40), str(int(dies)), str(folder)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", _simulated_host.__file__, *arguments],
            env={
                **os.environ,
                "FAULTBENCH_HOST": f"tpu-{index}",
                "FAULTBENCH_PYTHON": sys.executable,
                "FAULTBENCH_SCRIPTS": str(folder / "scripts"),
                "JAX_PROCESS_ID": str(index),
                "JAX_NUM_PROCESSES": "2",
                "ML_DIAGNOSTICS_ATTEMPT": str(number),
                "ML_DIAGNOSTICS_BACKEND": "local",
                "RUN_WORKLOAD_ID": "digits",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(2)
    ]
    codes = [process.wait(timeout=100) for process in processes]
    assert codes == ([1, -9] if dies else [0, 0])


@pytest.mark.timeout(300)
def test_a_real_job_of_two_hosts_is_blamed_on_the_one_that_was_killed(root: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    for number, dies in enumerate((True, True, False)):
        attempt(tmp_path, number, dies)
    rows_of_mirror(root, mirror, time.time_ns())
    done = run("causes", "--mirror", mirror)
    assert re.fullmatch(r"2 disruptions judged: C7 2; 2 of them by a host\n", done.stdout), done
    found = disruptions(mirror)
    assert [(row["number"], row["cause"], row["cause_host"], row["confidence"]) for row in found] == [
        (1, "C7", "tpu-1", "proven"),
        (2, "C7", "tpu-1", "proven"),
    ]
    snapshot = newest_rows(mirror)
    assert snapshot is not None
    attempts = read_table(mirror, snapshot, "attempts").to_pylist()
    assert [row["hosts"] for row in attempts] == [["tpu-0", "tpu-1"]] * 3
