"""Ctrl-C, at every stage of `xprofiler create`: a real signal to a real process, and no VM is left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ml_diagnostics_testing.faults import Delay, Hang

from ..loopback.compute import ComputeServer
from ..waiting import LONG_SECONDS, wait_until
from .viewer_cloud import INSTALLING, LOGS, READY, ZONE, Running, ViewerCloud

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")

CREATE = ("create", "-z", ZONE, "-l", LOGS)


@pytest.fixture
def cloud(compute_server: ComputeServer, tmp_path: Path) -> ViewerCloud:
    cloud = ViewerCloud(compute_server, tmp_path)
    cloud.statuses = [INSTALLING]
    return cloud


def _interrupted(running: Running, number: int = signal.SIGINT) -> str:
    running.interrupt(number)
    assert running.end() == 130
    assert "Traceback" not in running.errors
    assert running.errors.endswith("interrupted\n")
    return running.errors


@pytest.mark.parametrize("operation", ["zone", "machine_type", "get", "list"])
def test_while_the_preconditions_are_checked(cloud: ViewerCloud, operation: str) -> None:
    cloud.compute.faults.always(Hang(), on=operation)
    running = cloud.start(*CREATE)
    cloud.wait_for(operation)
    assert "cleanup" not in _interrupted(running)
    assert cloud.names() == []


def test_while_the_bucket_is_checked(cloud: ViewerCloud) -> None:
    cloud.compute.storage.faults.always(Hang(), on="list")
    running = cloud.start(*CREATE)
    cloud.wait_for("list", storage=True)
    _interrupted(running)
    assert cloud.names() == []


def test_while_it_prompts(cloud: ViewerCloud) -> None:
    cloud.add_viewer("xprof-old")
    running = cloud.start(*CREATE)
    running.wait_for("(y/n)")
    _interrupted(running)
    assert cloud.names() == ["xprof-old"]


def test_while_the_answer_to_the_creation_is_pending(cloud: ViewerCloud) -> None:
    cloud.compute.faults.always(Hang(after_apply=True), on="insert")
    running = cloud.start(*CREATE)
    wait_until(lambda: len(cloud.names()) == 1)
    assert "Nothing remains" in _interrupted(running)
    assert cloud.names() == []


def test_while_the_vm_appears_after_the_request(cloud: ViewerCloud) -> None:
    cloud.compute.faults.always(Delay(LONG_SECONDS), on="insert")
    running = cloud.start(*CREATE)
    cloud.wait_for("insert")
    assert cloud.names() == []
    running.interrupt()
    running.wait_for("Initiating cleanup")
    assert cloud.names() == []
    cloud.compute.faults.release()
    assert running.end() == 130
    assert "Nothing remains" in running.errors
    assert running.errors.endswith("interrupted\n")
    (made,) = [request for request in cloud.compute.requests if request.operation == "insert"]
    assert made.status == 200  # It was created, and deleted again.
    assert cloud.names() == []


def test_while_the_vm_is_being_created(cloud: ViewerCloud) -> None:
    cloud.compute.operations.seconds = 1.0
    running = cloud.start(*CREATE)
    cloud.wait_for("wait")
    assert "Nothing remains" in _interrupted(running)
    wait_until(lambda: cloud.names() == [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_xprof_is_being_installed(cloud: ViewerCloud, number: int) -> None:
    running = cloud.start(*CREATE)
    running.wait_for("installing XProf")
    errors = _interrupted(running, number)
    assert "Unable to set up instance. Initiating cleanup.\n" in errors
    assert cloud.names() == []


def test_while_the_vm_has_no_status(cloud: ViewerCloud) -> None:
    cloud.statuses = []
    running = cloud.start(*CREATE)
    running.wait_for("exists; installing XProf")
    _interrupted(running)
    assert cloud.names() == []


def test_while_its_status_is_read(cloud: ViewerCloud) -> None:
    cloud.compute.storage.faults.always(Hang(), on="get")
    cloud.compute.storage.faults.always(Hang(), on="read")
    running = cloud.start(*CREATE)
    running.wait_for("exists; installing XProf")
    wait_until(lambda: any(request.operation in ("get", "read") for request in cloud.compute.storage.requests))
    _interrupted(running)
    assert cloud.names() == []


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_while_gcloud_creates_the_vm(cloud: ViewerCloud) -> None:
    cloud.compute.operations.seconds = 2.0
    running = cloud.start(*CREATE, "--no-address")
    cloud.wait_for("insert")
    assert "Nothing remains" in _interrupted(running)
    wait_until(lambda: cloud.names() == [])


def test_again_while_it_cleans_up(cloud: ViewerCloud) -> None:
    cloud.compute.faults.always(Hang(), on="delete")
    running = cloud.start(*CREATE)
    running.wait_for("installing XProf")
    running.interrupt()
    cloud.wait_for("delete")
    errors = _interrupted(running)
    (name,) = cloud.names()
    assert f"The VM {name} in zone {ZONE} MAY REMAIN, and cost money: its deletion was interrupted" in errors
    assert f"xprofiler delete -z {ZONE} -n {name}" in errors


def test_a_closed_terminal_does_not_prevent_the_cleanup(cloud: ViewerCloud) -> None:
    running = cloud.start(*CREATE)
    running.wait_for("installing XProf")
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.interrupt(signal.SIGHUP)
    running.end()
    assert cloud.names() == []


@pytest.mark.parametrize("options", [(), ("--verbose",), ("--no-address",)], ids=["", "verbose", "by gcloud"])
def test_a_closed_standard_error_leaves_no_vm_behind(cloud: ViewerCloud, options: tuple[str, ...]) -> None:
    if options == ("--no-address",) and shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed")
    read, write = os.pipe()
    command = [sys.executable, "-m", "xprofiler", *CREATE, *options]
    process = subprocess.Popen(command, env=cloud.environment(), stdout=subprocess.DEVNULL, stderr=write)
    os.close(write)
    try:
        cloud.wait_for("insert")
        os.close(read)  # As `2>&1 >/dev/null | head -n 1` does.
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()
    assert cloud.names() == []


def test_a_running_viewer_stays_if_standard_output_is_closed(cloud: ViewerCloud) -> None:
    cloud.statuses = [READY]
    read, write = os.pipe()
    command = [sys.executable, "-m", "xprofiler", *CREATE]
    process = subprocess.Popen(command, env=cloud.environment(), stdout=write, stderr=subprocess.DEVNULL)
    os.close(write)
    os.close(read)
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert len(cloud.names()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--no-address",)], ids=["by the API", "by gcloud"])
def test_at_any_moment(tmp_path: Path, extra: tuple[str, ...]) -> None:
    moments = random.Random(8)
    for _ in range(20):
        with ComputeServer() as compute:
            cloud = ViewerCloud(compute, tmp_path)
            compute.operations.seconds = 0.3
            running = cloud.start(*CREATE, *extra)
            running.wait_for("Waiting for instance")
            time.sleep(moments.uniform(0, 3 if extra else 1.8))
            running.interrupt()
            assert running.process.stdout is not None
            was_reported = "has been created" in running.process.stdout.read()
            running.end()
            wait_until(cloud.is_settled)  # Pending requests have succeeded or failed.
            assert cloud.names() == [] or was_reported
