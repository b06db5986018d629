"""`mldiagnostics release`: a failed job that is held for debugging ends, from here, a shared disk or a laptop."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion.log import EntryLog
from cloud_tpu_diagnostics.entries import HELD, JOB_ENDED, entry
from cloud_tpu_diagnostics.holds import Hold, holds_directory, read_holds
from google_cloud_mldiagnostics.cli import main

from ..loopback.kubernetes import KubernetesServer
from ..waiting import Child, is_alive, wait_until
from .made_clusters import pod

Captured = pytest.CaptureFixture[str]
_HELD = [sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--hold-on-failure", "1h", "--"]
_HOST = os.uname().nodename


def release(*arguments: str) -> int:
    return main(["release", "--kubernetes", "off", *arguments])


@pytest.mark.parametrize("variable", ["ML_DIAGNOSTICS_JOB", "ML_DIAGNOSTICS_RUN"])
def test_a_held_job_of_this_machine_is_released_by_its_name(capsys: Captured, variable: str) -> None:
    job = Child([*_HELD, "sh", "-c", "exit 3"], env={**os.environ, variable: "llama 7"})
    wait_until(lambda: bool(read_holds()))
    assert release("llama 7", _HOST) == 0
    assert job.end()[0] == 3
    assert f"{_HOST} is released" in capsys.readouterr().err


@pytest.mark.parametrize("shell", [[], ["sh", "-c", '"$@"; exit 3', "sh"]])
def test_a_held_run_is_released_by_its_id_though_its_name_was_only_known_to_the_program(
    capsys: Captured, shell: list[str]
) -> None:
    program = """
from google_cloud_mldiagnostics import machinelearning_run
with machinelearning_run("digits", gcs_path="", on_demand_xprof=False):
    raise SystemExit(3)
"""
    job = Child([*_HELD, *shell, sys.executable, "-c", program])
    wait_until(lambda: bool(read_holds()))
    assert release("last", _HOST) == 0, capsys.readouterr().err
    assert job.end()[0] == 3


def test_only_the_host_and_the_run_that_are_named_are_released(capsys: Captured) -> None:
    for host, run in (("host-1", "llama"), ("host-2", "llama"), ("host-1", "other")):
        pid = {"llama": 1, "other": 2}[run]
        Hold(holds_directory() / f"{host}-{pid}.json", host, pid, run=run).write()
    assert release("llama", "host-1") == 0
    assert [(hold.host, hold.run) for hold in read_holds()] == [("host-1", "other"), ("host-2", "llama")]


def test_the_index_of_a_process_releases_the_hold_of_that_process_alone(capsys: Captured) -> None:
    for index, (host, pid) in enumerate([("host-1", 7), ("host-1", 8), ("host-2", 9)]):
        labels = {"job": "llama", "run": "llama", "host": host, "pid": str(pid), "process_index": str(index)}
        log = EntryLog(labels, is_shipped=False)
        log.write(entry(JOB_ENDED, "ended", how="exit", exit_code=3, ended_ns=time.time_ns()))
        log.close(1.0)
        Hold(holds_directory() / f"{host}-{pid}.json", host, pid, run="llama").write()
    assert release("llama", "1") == 0, capsys.readouterr().err
    assert "host-1 is released: the process 8 of llama was held" in capsys.readouterr().err
    assert sorted(hold.pid for hold in read_holds()) == [7, 9]


def test_the_index_of_a_run_that_only_its_program_names_releases_its_wrapper(capsys: Captured) -> None:
    program = """
from google_cloud_mldiagnostics import machinelearning_run
with machinelearning_run("digits", gcs_path="", on_demand_xprof=False):
    raise SystemExit(3)
"""
    job = Child([*_HELD, sys.executable, "-c", program])
    wait_until(lambda: bool(read_holds()))
    assert release("last", "0") == 0, capsys.readouterr().err
    assert job.end()[0] == 3


def test_a_host_that_is_not_held_is_not_found(capsys: Captured) -> None:
    log = EntryLog({"job": "llama", "run": "llama", "host": "host-1", "pid": "7"}, is_shipped=False)
    log.write(entry(JOB_ENDED, "ended", how="exit", exit_code=3))
    log.close(1.0)
    assert release("llama", "host-1") == 3
    assert "host-1 is not held: there is no file in" in capsys.readouterr().err


def test_a_host_that_was_released_before_shows_by_what(capsys: Captured) -> None:
    _record_hold("host-1", 12, released_by="SIGTERM to process 12")
    assert release("llama", "host-1") == 3
    assert "it was released by SIGTERM to process 12" in capsys.readouterr().err


def test_a_file_that_cannot_be_removed_is_an_error(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = Hold(holds_directory() / "host-1-7.json", "host-1", 7, run="llama")
    hold.write()
    hold.path.unlink()
    hold.path.mkdir()
    (hold.path / "not empty").touch()
    assert release("llama", "host-1") != 0
    assert "Traceback" not in capsys.readouterr().err


def _record_hold(host: str, wrapper_pid: int, *, released_by: str = "") -> None:
    """Record that a failed process is held, as an entry alone: its file is on another disk."""
    log = EntryLog({"job": "llama", "run": "llama", "host": host, "pid": "7", "process_index": "0"}, is_shipped=False)
    log.write(entry(JOB_ENDED, "ended", how="exit", exit_code=3, ended_ns=time.time_ns()))
    until_ns = time.time_ns() + 3600 * 10**9
    state = "RELEASED" if released_by else "HELD"
    log.write(
        entry(HELD, "held", state=state, wrapper_pid=wrapper_pid, until_ns=until_ns, released_by=released_by or None)
    )
    log.close(1.0)


# --- In a cluster -------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    with KubernetesServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.put("pods", pod(0, job="llama"), "ml")
        yield server


def test_the_process_that_holds_a_pod_is_ended_by_a_signal_in_it(
    cluster: KubernetesServer, capfd: Captured, tmp_path: Path
) -> None:
    """The pods of this cluster run programs on this machine, with another diagnostics folder."""
    job = Child([*_HELD, "sh", "-c", "exit 3"], env={**os.environ, "ML_DIAGNOSTICS_DIR": str(tmp_path / "in the pod")})
    wait_until(lambda: bool(read_holds(tmp_path / "in the pod")))
    _record_hold("llama-0", job.process.pid)
    assert main(["release", "llama", "llama-0", "--kubernetes", "test-cluster"]) == 0
    assert job.end()[0] == 3
    assert not is_alive(job.process.pid)
    assert f"SIGTERM was sent to process {job.process.pid}" in capfd.readouterr().err


def test_without_the_right_to_signal_it_is_an_error(cluster: KubernetesServer, capfd: Captured) -> None:
    cluster.denied = {"create pods/exec", "get pods/exec"}
    _record_hold("llama-0", 99_999_999)
    assert main(["release", "llama", "llama-0", "--kubernetes", "test-cluster"]) == 1
    assert "llama-0 is not released" in capfd.readouterr().err
