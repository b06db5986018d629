"""`xprofiler list --gke` and `delete --gke`, with the real kubectl and a cluster on loopback."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_testing.faults import Status
from xprofiler.viewers.on_gke import ViewersOnGke
from xprofiler.viewers.viewer import Viewer

from ..loopback.kubernetes import KubernetesServer
from .conftest import Run

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

ZONE = "us-central1-a"
NAMESPACE = "xprofiler"


@pytest.fixture(autouse=True)
def _here(kubernetes_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirect kubectl to the cluster on loopback."""
    for name, value in kubernetes_server.environment().items():
        monkeypatch.setenv(name, value)


def add_viewer(server: KubernetesServer, name: str, *, logs: str, zone: str = ZONE, link: str = "") -> None:
    """Add the two services of a viewer, as `create --gke` does."""
    labels = {"instance": name, "zone": zone}
    annotations = {"xprofiler_log_directory": logs, **({"proxy-url": link} if link else {})}
    for suffix, role in (("agent-service", "xprofiler-proxy-service"), ("service", "xprofiler-tb")):
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


def test_a_search_without_matches_finds_nothing_rather_than_everything(
    run: Run, kubernetes_server: KubernetesServer
) -> None:
    add_viewer(kubernetes_server, "xprofiler-a", logs="gs://bucket/run")
    for path in ("gs://bucket/none", "gs://bucket", "gs://bucket/run/longer"):
        assert len(run("list", "--gke", "-l", path).output.splitlines()) == 2
        ended = run("delete", "--gke", "-q", "-z", ZONE, "-l", path)
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


def _put_deployment(server: KubernetesServer, name: str, **labels: str) -> None:
    metadata = {"name": name, "labels": labels}
    server.put("deployments", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}, NAMESPACE)


def test_other_objects_are_kept_whatever_their_labels(run: Run, kubernetes_server: KubernetesServer) -> None:
    add_viewer(kubernetes_server, "one", logs="gs://bucket/run")
    _put_deployment(kubernetes_server, "one-tb", instance="one", role="xprofiler-tb")
    _put_deployment(kubernetes_server, "payments", instance="one")
    _put_deployment(kubernetes_server, "trainer", instance="one", role="trainer")
    kubernetes_server.add_pod("pod-1", namespace=NAMESPACE, labels={"instance": "one", "role": "xprofiler-tb"})
    assert run("delete", "--gke", "-z", ZONE, "-n", "one", answers="y\n").code == 0
    assert services(kubernetes_server) == []
    kept = [one["metadata"]["name"] for one in kubernetes_server.objects("deployments", NAMESPACE)]
    assert sorted(kept) == ["payments", "trainer"]
    assert len(kubernetes_server.objects("pods", NAMESPACE)) == 1


def test_permissions_on_the_resources_of_viewers_suffice(run: Run, kubernetes_server: KubernetesServer) -> None:
    add_viewer(kubernetes_server, "one", logs="gs://bucket/run")
    others = ("pods", "jobs", "replicasets", "statefulsets")
    kubernetes_server.denied = {f"{verb} {kind}" for verb in ("list", "delete", "deletecollection") for kind in others}
    assert run("delete", "--gke", "-q", "-z", ZONE, "-n", "one").code == 0
    assert services(kubernetes_server) == []


_MEET = """#!/bin/sh
touch "$FOLDER/$$"
for _ in $(seq 600); do [ "$(ls "$FOLDER" | wc -l)" = 3 ] && exit 0; sleep 0.1; done
exit 1
"""


def test_viewers_are_deleted_in_parallel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "met").mkdir()
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text(_MEET)
    kubectl.chmod(0o755)
    monkeypatch.setenv("FOLDER", str(tmp_path / "met"))
    monkeypatch.setenv("PATH", f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}")
    viewers = [Viewer(name, ZONE, "gs://bucket/run", None, "RUNNING") for name in ("one", "two", "three")]
    assert ViewersOnGke(Console()).delete(viewers) == [None, None, None]


def test_a_dry_run_prints_the_calls_of_kubectl(run: Run, kubernetes_server: KubernetesServer) -> None:
    add_viewer(kubernetes_server, "xprofiler-a", logs="gs://bucket/run")
    ended = run("delete", "--gke", "--dry-run", "-z", ZONE, "-n", "xprofiler-a")
    assert ended.output.splitlines()[-1].startswith("kubectl ")
    assert "instance=xprofiler-a" in ended.output.splitlines()[-1]
    assert len(services(kubernetes_server)) == 2


def test_a_cluster_that_refuses_is_a_permission_error(run: Run, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.faults.always(Status(403))
    ended = run("list", "--gke")
    assert (ended.code, ended.output) == (4, "")
    assert ended.errors.startswith("xprofiler: kubectl could not get viewers in namespace xprofiler: Error from server")
    assert "memcache.go" not in ended.errors
