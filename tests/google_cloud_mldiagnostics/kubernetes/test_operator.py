"""The operator with a real API server: an object becomes a profile of its pods, or reports why not."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.xplane import read_xplane
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

from ...kube_api import KubeApi
from ...waiting import wait_until
from .operators import Operator, final_status, jax_pod, manifest, path_of, running_pod, status_of


@pytest.fixture
def service() -> Iterator[ProfilerServiceServer]:
    with ProfilerServiceServer() as server:
        yield server


@pytest.fixture
def operator(connections: KubeApi, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    with Operator(connections, namespace, tmp_path) as found:
        found.wait_until_it_leads()
        yield found


def kubectl(server: KubeApi, *arguments: str, text: str = "") -> str:
    command = shutil.which("kubectl")
    if command is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [command, f"--kubeconfig={server.kubeconfig}", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_object_applied_by_kubectl_becomes_a_profile_of_a_jax_process(
    operator: Operator, namespace: str, tmp_path: Path
) -> None:
    server, location = operator.server, str(tmp_path / "profiles")
    running_pod(server, namespace, "w0")
    with jax_pod() as port:
        document = manifest(namespace, "profile", "w0", port, location)
        kubectl(server, "apply", "-f", "-", text=json.dumps(document))
        status = final_status(server, namespace, "profile")
        listed = kubectl(server, "get", "mldc", "-n", namespace)
    assert status["phase"] == "Succeeded", (status, operator.log)
    assert status["captureResult"]["status"] == "Succeeded"
    folder = Path(status["captureResult"]["outputLocation"])
    uid = server.call("GET", path_of(namespace, "profile"))["metadata"]["uid"]
    assert folder == Path(location, "plugins", "profile", f"profile-{uid[:8]}")
    assert read_xplane(folder / "w0.xplane.pb").is_whole
    assert [line.split()[:2] for line in listed.splitlines()] == [["NAME", "STATUS"], ["profile", "Succeeded"]]
    kubectl(server, "delete", "mldc", "profile", "-n", namespace)
    assert folder.exists()


def test_a_pod_that_is_missing_does_not_keep_the_others_from_their_profiles(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    server = operator.server
    running_pod(server, namespace, "w0")
    running_pod(server, namespace, "of-node", hostNetwork=True)
    document = manifest(namespace, "three", "w0,missing,of-node", service.port, str(tmp_path))
    server.call("POST", path_of(namespace), document)
    status = final_status(server, namespace, "three")
    assert (status["phase"], status["message"]) == ("Failed", "1 of 3 pods profiled")
    error = status["captureResult"]["errorMessage"]
    assert f"missing: there is no pod of this name in the namespace {namespace}" in error
    assert "of-node: it uses the network of its node" in error
    assert Path(status["captureResult"]["outputLocation"], "w0.xplane.pb").exists()


def test_an_object_for_a_foreign_namespace_is_refused_until_that_namespace_allows_it(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    server = operator.server
    other = f"{namespace}-other"
    server.apply("/api/v1/namespaces", {"metadata": {"name": other}})
    running_pod(server, other, "w0")
    document = manifest(namespace, "foreign", "w0", service.port, str(tmp_path), pod_namespace=other)
    server.call("POST", path_of(namespace), document)
    status = final_status(server, namespace, "foreign")
    assert status["phase"] == "Failed"
    assert f"annotate that namespace with mldiagnostics.dev/allow-captures-from: {namespace}" in status["message"]
    assert service.profiles == []
    allowed = {"metadata": {"annotations": {"mldiagnostics.dev/allow-captures-from": f"x, {namespace}"}}}
    server.call("PATCH", f"/api/v1/namespaces/{other}", allowed, kind="application/merge-patch+json")
    document["metadata"]["name"] = "allowed"
    server.call("POST", path_of(namespace), document)
    assert final_status(server, namespace, "allowed")["phase"] == "Succeeded"


def test_objects_for_one_pod_are_captured_one_after_the_other(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    server = operator.server
    running_pod(server, namespace, "w0")
    for name in ("a", "b", "c"):
        server.call("POST", path_of(namespace), manifest(namespace, name, "w0", service.port, str(tmp_path)))
    assert {final_status(server, namespace, name)["phase"] for name in ("a", "b", "c")} == {"Succeeded"}
    assert len(service.profiles) == 3


def test_objects_for_one_pod_leave_slots_for_those_of_others(
    connections: KubeApi, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    with (
        ProfilerServiceServer() as other,
        Operator(connections, namespace, tmp_path, policy={"most_captures": 2}) as one,
    ):
        one.wait_until_it_leads()
        for pod in ("w0", "w1"):
            running_pod(connections, namespace, pod)
        for name in ("a", "b", "c"):
            document = manifest(namespace, name, "w0", service.port, str(tmp_path), seconds=20)
            connections.call("POST", path_of(namespace), document)
        wait_until(lambda: "by another object" in status_of(connections, namespace, "c").get("message", ""))
        connections.call("POST", path_of(namespace), manifest(namespace, "d", "w1", other.port, str(tmp_path)))
        assert final_status(connections, namespace, "d")["phase"] == "Succeeded"
        assert status_of(connections, namespace, "a")["phase"] == "Running"


def test_success_is_not_reported_for_a_file_that_is_not_whole(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    server = operator.server
    running_pod(server, namespace, "w0")
    service.writes = "half"
    server.call("POST", path_of(namespace), manifest(namespace, "half", "w0", service.port, str(tmp_path)))
    status = final_status(server, namespace, "half")
    assert (status["phase"], status["captureResult"]["errorMessage"]) == (
        "Failed",
        "w0: its file is cut off, or not a profile",
    )


def test_a_finished_object_is_deleted_after_its_time_and_its_files_stay(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    server = operator.server
    running_pod(server, namespace, "w0")
    annotations = {"mldiagnostics.dev/ttl-seconds-after-finished": "1"}
    document = manifest(namespace, "short", "w0", service.port, str(tmp_path), annotations=annotations)
    server.call("POST", path_of(namespace), document)
    wait_until(lambda: not server.call("GET", path_of(namespace))["items"])
    assert len([*tmp_path.rglob("w0.xplane.pb")]) == 1


def test_sigterm_ends_a_running_capture_in_order_and_gives_the_lease_back(
    operator: Operator, namespace: str, tmp_path: Path, service: ProfilerServiceServer
) -> None:
    server = operator.server
    running_pod(server, namespace, "w0")
    server.call("POST", path_of(namespace), manifest(namespace, "last", "w0", service.port, str(tmp_path), seconds=2))
    wait_until(lambda: service.profiles)
    assert operator.kill(signal.SIGTERM) == 0, operator.log
    assert status_of(server, namespace, "last")["phase"] == "Succeeded"
    lease = server.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{_LEASE}")
    assert not lease["spec"].get("holderIdentity")


def test_probes_and_metrics_report_that_the_operator_works(operator: Operator) -> None:
    def get(port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return str(response.read().decode())

    def is_ready() -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            return get(operator.probe_port, "/readyz") == "ok\n"
        return False

    wait_until(is_ready)  # It may lead before it has listed its objects.
    assert get(operator.probe_port, "/healthz") == "ok\n"
    wait_until(lambda: "mldiagnostics_operator_leader 1.0" in get(operator.metrics_port, "/metrics"))


_LEASE = "mldiagnostics-connection-operator"
