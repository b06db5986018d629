"""`xprofiler list --gke` and `delete --gke`, by the real kubectl and a cluster on loopback."""

from __future__ import annotations

import json
import shutil

import pytest
from ml_diagnostics_testing.faults import Status
from ml_diagnostics_testing.kubernetes import KubernetesServer

from .conftest import Run

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

ZONE = "us-central1-a"
NAMESPACE = "xprofiler"


@pytest.fixture(autouse=True)
def _here(kubernetes_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubectl is led to the cluster on loopback."""
    for name, value in kubernetes_server.environment().items():
        monkeypatch.setenv(name, value)


def add_viewer(server: KubernetesServer, name: str, *, logs: str, zone: str = ZONE, link: str = "") -> None:
    """Adds the two services of a viewer, as `create --gke` does."""
    labels = {"instance": name, "zone": zone}
    annotations = {"xprofiler_log_directory": logs, **({"proxy-url": link} if link else {})}
    for suffix, role in (("agent-service", "xprofiler-proxy-service"), ("service", "xprofiler-service")):
        metadata = {
            "name": f"{name}-{suffix}",
            "labels": {**labels, "role": role},
            "annotations": annotations,
        }
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
        server.put("services", service, NAMESPACE)


def services(server: KubernetesServer) -> list[str]:
    return sorted(service["metadata"]["name"] for service in server.objects("services", NAMESPACE))


def test_viewers_of_a_cluster_are_listed(run: Run, kubernetes_server: KubernetesServer) -> None:
    add_viewer(kubernetes_server, "xprofiler-a", logs="gs://bucket/run", link="a-dot-us-central1.example.com")
    add_viewer(kubernetes_server, "xprofiler-b", logs="gs://bucket/run/longer", zone="us-east5-a")
    records = json.loads(run("list", "--gke", "--format=json").output)
    assert [(one["name"], one["url"], one["zone"]) for one in records] == [
        ("xprofiler-a", "https://a-dot-us-central1.example.com", ZONE),
        ("xprofiler-b", None, "us-east5-a"),
    ]
    table = run("list", "--gke", "-z", ZONE).output.splitlines()
    assert [line.split()[2] for line in table[2:]] == ["xprofiler-a"]


def test_what_matches_nothing_is_nothing_and_not_everything(run: Run, kubernetes_server: KubernetesServer) -> None:
    add_viewer(kubernetes_server, "xprofiler-a", logs="gs://bucket/run")
    for place in ("gs://bucket/none", "gs://bucket", "gs://bucket/run/longer"):
        assert len(run("list", "--gke", "-l", place).output.splitlines()) == 2
        ended = run("delete", "--gke", "-q", "-z", ZONE, "-l", place)
        assert (ended.code, ended.errors) == (3, "No Pod(s) to delete.\n")
    assert len(services(kubernetes_server)) == 2


def test_only_what_was_confirmed_is_deleted(run: Run, kubernetes_server: KubernetesServer) -> None:
    for name in ("xprofiler-a", "xprofiler-b", "xprofiler-c"):
        add_viewer(kubernetes_server, name, logs="gs://bucket/run")
    ended = run("delete", "--gke", "-z", ZONE, "-l", "gs://bucket/run", answers="n\ny\nn\n")
    assert ended.code == 0, ended.errors
    assert ended.output.startswith("Found 3 Pod(s) to delete.\n")
    assert "Will delete Pod `xprofiler-b`\n" in ended.errors
    assert {name.rpartition("-agent")[0] or name.removesuffix("-service") for name in services(kubernetes_server)} == {
        "xprofiler-a",
        "xprofiler-c",
    }


def test_several_names_are_all_deleted(run: Run, kubernetes_server: KubernetesServer) -> None:
    for name in ("xprofiler-a", "xprofiler-b"):
        add_viewer(kubernetes_server, name, logs="gs://bucket/run")
    assert run("delete", "--gke", "-q", "-z", ZONE, "-n", "xprofiler-a", "xprofiler-b").code == 0
    assert services(kubernetes_server) == []


def test_a_dry_run_says_what_kubectl_would_do(run: Run, kubernetes_server: KubernetesServer) -> None:
    add_viewer(kubernetes_server, "xprofiler-a", logs="gs://bucket/run")
    ended = run("delete", "--gke", "--dry-run", "-z", ZONE, "-n", "xprofiler-a")
    assert ended.output.splitlines()[-1].startswith("kubectl ")
    assert "instance=xprofiler-a" in ended.output.splitlines()[-1]
    assert len(services(kubernetes_server)) == 2


def test_a_cluster_that_refuses_is_no_permission(run: Run, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.faults.always(Status(403))
    ended = run("list", "--gke")
    assert (ended.code, ended.output) == (4, "")
    assert ended.errors.startswith("xprofiler: kubectl could not get viewers in namespace xprofiler: Error from server")
    assert "memcache.go" not in ended.errors
