"""Faults of the operator, of another one, of the API server and of rights: every object ends in a phase."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ml_diagnostics_common.xplane import read_xplane
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

_CLAIMED = "mldiagnostics.dev/claimed-by"


@pytest.fixture
def service() -> Iterator[ProfilerServiceServer]:
    with ProfilerServiceServer() as server:
        yield server


def profiles_are_whole(status: dict[str, dict[str, str]]) -> bool:
    """Return True if the files of an object that succeeded are whole."""
    files = [*Path(status["captureResult"]["outputLocation"]).glob("*.xplane.pb")]
    return bool(files) and all(read_xplane(file).is_whole for file in files)


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
def test_an_operator_without_one_of_its_rights_says_so_and_runs_on(
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_object_is_left_without_a_phase_or_claimed_twice_whatever_ends_operators(
    connections: KubeApi, namespace: str, tmp_path: Path
) -> None:
    """1,000 objects of ten pods, while operators are killed, stopped and started at random moments."""
    rng, objects, pods = random.Random(7), 1000, 10
    services = [ProfilerServiceServer() for _ in range(pods)]
    for number in range(pods):
        running_pod(connections, namespace, f"w{number}")
    names = [f"a{number}" for number in range(objects)]
    deleted: set[str] = set()
    claims: dict[str, set[str]] = {}
    operators = [start(connections, namespace, tmp_path) for _ in range(2)]
    try:
        created = 0
        deadline = time.monotonic() + 1500
        while time.monotonic() < deadline:
            for name in names[created : created + 20]:
                number = int(name[1:]) % pods
                document = manifest(namespace, name, f"w{number}", services[number].port, str(tmp_path))
                connections.call("POST", path_of(namespace), document)
            created = min(objects, created + 20)
            states = {each["metadata"]["name"]: each for each in connections.call("GET", path_of(namespace))["items"]}
            for name, each in states.items():
                claims.setdefault(name, set()).update(each["metadata"].get("annotations", {}).get(_CLAIMED, "").split())
            open_names = [name for name, each in states.items() if not is_final(each)]
            if created == objects and not open_names:
                break
            if open_names and rng.random() < 0.3:
                name = rng.choice(open_names)
                deleted.add(name)
                connections.call("DELETE", path_of(namespace, name))
            if rng.random() < 0.03:
                victim = operators.pop(rng.randrange(2))
                victim.__exit__(None, None, None)
                operators.append(start(connections, namespace, tmp_path))
            for operator in operators:  # As a Deployment restarts them.
                if operator.process is not None and operator.process.poll() is not None:
                    operator.__enter__()
            time.sleep(0.5)
        ended = connections.call("GET", path_of(namespace))["items"]
        assert len(ended) == objects - len(deleted)
        assert [each["metadata"]["name"] for each in ended if not is_final(each)] == []
        succeeded = [each["status"] for each in ended if each["status"]["phase"] == "Succeeded"]
        assert succeeded
        assert all(profiles_are_whole(status) for status in succeeded)
        assert all(len(found) <= 1 for found in claims.values())
        sessions = [profile.session_id for service in services for profile in service.profiles]
        assert len(sessions) == len(set(sessions))  # No object was captured twice.
    finally:
        for operator in operators:
            operator.__exit__(None, None, None)
        for service in services:
            service.close()


def start(server: KubeApi, namespace: str, folder: Path) -> Operator:
    """Start an operator that a test ends."""
    return Operator(server, namespace, folder, watch_seconds=5).__enter__()


def is_final(document: dict[str, dict[str, str]]) -> bool:
    """Return True for an object with its last phase."""
    return document.get("status", {}).get("phase") in ("Succeeded", "Failed")
