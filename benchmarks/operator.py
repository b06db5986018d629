"""The connection operator: from an object to its profile, and how soon it goes on after what breaks around it."""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.results import Row, Table, seconds
from tests.google_cloud_mldiagnostics.kubernetes.frozen_connections import FreezingProxy
from tests.google_cloud_mldiagnostics.kubernetes.operators import (
    Operator,
    add_connections,
    jax_pod,
    manifest,
    path_of,
    running_pod,
    status_of,
)
from tests.kube_api import KubeApi, shared_server
from tests.waiting import free_port, wait_until

_LONGEST_SECONDS = 120.0


def measure(*, quick: bool) -> list[Table]:
    with tempfile.TemporaryDirectory() as name, shared_server(Path(name) / "kube-api") as server:
        folder = Path(name)
        add_connections(server)
        port = free_port()
        with jax_pod(port):
            rows = [
                *_captures(server, folder, port, 3 if quick else 20),
                *_failovers(server, folder, port, 1 if quick else 3),
                _blind_watch(server, folder, port),
            ]
    note = (
        "A real API server without kubelets, a JAX process that computes all the time as the pod, and operators as"
        " processes. Compared with the prototype of the design."
    )
    return [Table("The connection operator", note, rows)]


def _captures(server: KubeApi, folder: Path, port: int, count: int) -> list[Row]:
    namespace = _namespace(server, "captures")
    running, succeeded = [], []
    with Operator(server, namespace, folder) as operator:
        operator.wait_until_it_leads()
        for number in range(count):
            started = _create(server, namespace, f"a{number}", port, folder)
            _wait_for(server, namespace, f"a{number}", lambda status: bool(status))
            running.append(time.perf_counter() - started)
            _wait_for(server, namespace, f"a{number}", _is_final)
            succeeded.append(time.perf_counter() - started)
            assert status_of(server, namespace, f"a{number}")["phase"] == "Succeeded", operator.log
    return [
        _row("object created to Running, p50", statistics.median(running), 0.08, 0.2),
        _row("object created to Succeeded, a profile of 1 s, p50", statistics.median(succeeded), 1.3, 1.6),
    ]


def _failovers(server: KubeApi, folder: Path, port: int, count: int) -> list[Row]:
    recovered, killed, terminated = [], [], []
    for number in range(count):
        namespace = _namespace(server, f"failover-{number}")
        with Operator(server, namespace, folder) as first:
            first.wait_until_it_leads()
            with Operator(server, namespace, folder) as second:
                _wait_until_ready(second)
                _create(server, namespace, "killed", port, folder, duration_seconds=60)
                _wait_for(server, namespace, "killed", lambda status: status.get("phase") == "Running")
                killed_at = time.perf_counter()
                first.kill()
                second.wait_until_it_leads()
                leads_at = time.perf_counter()
                killed.append(leads_at - killed_at)
                _wait_for(server, namespace, "killed", _is_final)
                recovered.append(time.perf_counter() - leads_at)
                with Operator(server, namespace, folder) as third:
                    _wait_until_ready(third)
                    ended_at = time.perf_counter()
                    second.kill(signal.SIGTERM)
                    third.wait_until_it_leads()
                    terminated.append(time.perf_counter() - ended_at)
    return [
        _row("killed in a capture: the object is final, after the next leader", max(recovered), 13.0, 5.0),
        _row("failover after kill -9, longest", max(killed), 16.8, 17.0),
        _row("failover after SIGTERM, longest", max(terminated), None, 3.0),
    ]


def _blind_watch(server: KubeApi, folder: Path, port: int) -> Row:
    namespace = _namespace(server, "blind")
    with (
        FreezingProxy(int(urlsplit(server.url).port or 0)) as proxy,
        Operator(server, namespace, folder, url=f"https://127.0.0.1:{proxy.port}") as operator,
    ):
        operator.wait_until_it_leads()
        proxy.freeze()
        started = _create(server, namespace, "a", port, folder)
        _wait_for(server, namespace, "a", lambda status: bool(status))
        return _row("watch frozen: a new object is seen", time.perf_counter() - started, 13.5, 32.0)


def _row(work: str, found: float, floor: float | None, most: float) -> Row:
    compared = f"prototype {seconds(floor)}" if floor is not None else ""
    return Row(work, seconds(found), compared, target=f"<= {seconds(most)}", met=found <= most)


def _namespace(server: KubeApi, name: str) -> str:
    server.apply("/api/v1/namespaces", {"metadata": {"name": name}})
    running_pod(server, name, "w0")
    return name


def _create(server: KubeApi, namespace: str, name: str, port: int, folder: Path, duration_seconds: int = 1) -> float:
    location = str(folder / "profiles")
    started = time.perf_counter()
    server.call("POST", path_of(namespace), manifest(namespace, name, "w0", port, location, seconds=duration_seconds))
    return started


def _wait_for(server: KubeApi, namespace: str, name: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not holds(status_of(server, namespace, name)):
        assert time.monotonic() < deadline, f"{namespace}/{name} takes too long"
        time.sleep(0.005)


def _is_final(status: dict[str, Any]) -> bool:
    return status.get("phase") in ("Succeeded", "Failed")


def _wait_until_ready(operator: Operator) -> None:
    """Wait until an operator waits for the lease of another one."""

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{operator.probe_port}/readyz", timeout=5):
                return True
        except OSError:
            return False

    wait_until(is_ready)
