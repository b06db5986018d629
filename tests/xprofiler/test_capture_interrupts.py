"""Ctrl-C, `kill` or a closed terminal during a capture: all started programs end, and existing files are reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from ml_diagnostics_testing.faults import Hang
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ..loopback.kubernetes import KubernetesServer
from ..waiting import wait_until

pytest.importorskip("grpc")
psutil = pytest.importorskip("psutil")
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

_LONG_MS = "60000"
_PATIENCE_SECONDS = 30.0
_ENDINGS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@pytest.fixture
def job() -> Iterator[ProfilerServiceServer]:
    with ProfilerServiceServer() as server:
        yield server


def interrupted(
    arguments: list[str],
    condition: Callable[[], object],
    environment: Mapping[str, str] | None = None,
    number: int = signal.SIGINT,
) -> tuple[int, str]:
    """Press Ctrl-C once a condition is true; return the exit code and the errors after everything has ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "xprofiler", "capture", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as command:
        try:
            wait_until(condition)
            started = psutil.Process(command.pid).children(recursive=True)
            command.send_signal(number)
            _, errors = command.communicate(timeout=_PATIENCE_SECONDS)
        finally:
            command.kill()
    wait_until(lambda: not any(process.is_running() for process in started))
    return command.returncode, errors


@pytest.mark.parametrize("number", _ENDINGS)
def test_during_a_capture_it_reports_existing_files(job: ProfilerServiceServer, tmp_path: Path, number: int) -> None:
    measured_from = time.monotonic()
    arguments = ["-o", "local", "-n", job.address, "-l", str(tmp_path), "-d", _LONG_MS]
    exit_code, errors = interrupted(arguments, lambda: job.profiles, number=number)
    assert exit_code == 130
    assert "has 0 files so far" in errors
    assert job.profiles[0].session_id in errors
    assert "Traceback" not in errors
    assert time.monotonic() - measured_from < int(_LONG_MS) / 1000


@needs_kubectl
@pytest.mark.parametrize("number", _ENDINGS)
def test_during_a_capture_of_a_pod_its_tunnel_ends(
    job: ProfilerServiceServer, kubernetes_server: KubernetesServer, tmp_path: Path, number: int
) -> None:
    kubernetes_server.add_pod("pod-1", ports={9012: job.port})
    arguments = ["-o", "gke", "-n", "pod-1", "-l", str(tmp_path), "-d", _LONG_MS]
    exit_code, errors = interrupted(arguments, lambda: job.profiles, kubernetes_server.environment(), number)
    assert exit_code == 130
    assert "on pod-1 may remain" in errors
    assert "Traceback" not in errors


@needs_kubectl
@pytest.mark.parametrize("stage", ["get", "port_forward"])
def test_before_a_capture_nothing_is_started(
    job: ProfilerServiceServer, kubernetes_server: KubernetesServer, tmp_path: Path, stage: str
) -> None:
    kubernetes_server.add_pod("pod-1", ports={9012: job.port})
    kubernetes_server.faults.always(Hang(), on=stage)
    arguments = ["-o", "gke", "-n", "pod-1", "-l", str(tmp_path), "-d", _LONG_MS]
    has_file = lambda: [one for one in kubernetes_server.requests if one.operation == stage]  # noqa: E731
    exit_code, errors = interrupted(arguments, has_file, kubernetes_server.environment())
    assert exit_code == 130
    assert "Traceback" not in errors
    assert not job.profiles
    assert not list(tmp_path.rglob("session_*"))
