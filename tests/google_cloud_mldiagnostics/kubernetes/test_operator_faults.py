"""Faults of the operator, of another one, of connections and of rights: every object ends in a phase."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ...kube_api import KubeApi
from ...waiting import wait_until
from .frozen_connections import FreezingProxy
from .operators import (
    RIGHTS,
    Operator,
    allow_stranger,
    final_status,
    manifest,
    path_of,
    running_pod,
)


@pytest.fixture
def service() -> Iterator[ProfilerServiceServer]:
    with ProfilerServiceServer() as server:
        yield server


def test_an_operator_killed_while_it_captures_leaves_an_object_that_the_next_one_ends(
    connections: KubeApi, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    running_pod(connections, namespace, "w0")
    with Operator(connections, namespace, tmp_path, lease_namespace=namespace) as first:
        first.wait_until_it_leads()
        document = manifest(namespace, "killed", "w0", service.port, str(tmp_path), seconds=30)
        connections.call("POST", path_of(namespace), document)
        wait_until(lambda: service.profiles)
        first.kill()
    forget_lease(connections, namespace)
    with Operator(connections, namespace, tmp_path) as second:
        second.wait_until_it_leads()
        status = final_status(connections, namespace, "killed")
    assert status["phase"] == "Failed"
    assert "the operator ended while it ran; create another object" in status["captureResult"]["errorMessage"]


def forget_lease(server: KubeApi, namespace: str) -> None:
    """Delete the lease of an operator that was killed, so that a test does not wait until it is over."""
    server.call(
        "DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/mldiagnostics-connection-operator"
    )


@pytest.mark.slow
def test_another_operator_takes_over_after_the_leader_was_killed(
    connections: KubeApi, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    running_pod(connections, namespace, "w0")
    with Operator(connections, namespace, tmp_path) as first:
        first.wait_until_it_leads()
        with Operator(connections, namespace, tmp_path) as second:
            first.kill()
            connections.call("POST", path_of(namespace), manifest(namespace, "a", "w0", service.port, str(tmp_path)))
            second.wait_until_it_leads()
            assert final_status(connections, namespace, "a")["phase"] == "Succeeded"


@pytest.mark.slow
def test_an_object_is_seen_although_the_connection_of_the_watch_carries_nothing(
    connections: KubeApi, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    running_pod(connections, namespace, "w0")
    document = manifest(namespace, "a", "w0", service.port, str(tmp_path))
    with (
        FreezingProxy(int(urlsplit(connections.url).port or 0)) as proxy,
        Operator(connections, namespace, tmp_path, url=f"https://127.0.0.1:{proxy.port}", watch_seconds=3) as operator,
    ):
        operator.wait_until_it_leads()
        proxy.freeze()
        connections.call("POST", path_of(namespace), document)
        assert final_status(connections, namespace, "a")["phase"] == "Succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("right", RIGHTS, ids="-".join)
def test_an_operator_without_one_of_its_rights_reports_it_and_runs_on(
    connections: KubeApi, namespace: str, tmp_path: Path, service: ProfilerServiceServer, right: tuple[str, str]
) -> None:
    allow_stranger(connections, namespace, without=right)
    running_pod(connections, namespace, "w0")
    annotations = {"mldiagnostics.dev/ttl-seconds-after-finished": "1"}
    document = manifest(namespace, "a", "w0", service.port, str(tmp_path), annotations=annotations)
    connections.call("POST", path_of(namespace), document)
    with Operator(connections, namespace, tmp_path, account="stranger", watch_seconds=2) as operator:
        # The object may be captured, and deleted: an operator leads for some seconds without renewing its lease.
        wait_until(lambda: "forbidden" in operator.log + str(connections.call("GET", path_of(namespace))))
        assert operator.process is not None
        assert operator.process.poll() is None
        assert "Traceback" not in operator.log
