"""Viewers on GKE: the real kubectl against a loopback cluster, and the program that registers them with the proxy."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, TimedOutError, UsageError, exit_code_of
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.on_gke import ViewerSetupOnGke, ViewersOnGke, manifest
from xprofiler.viewers.ssh_tunnel import wait_until_answered
from xprofiler.viewers.startup import STARTUP_SCRIPT

from ..loopback.kubernetes import KubernetesServer
from ..waiting import LONG_SECONDS, free_port, wait_until
from .viewer_cloud import LOGS, ZONE, Running
from .viewer_vm import ProxyServer, VmMetadataServer

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

CREATE = ("create", "--gke", "-z", ZONE, "-l", LOGS)
KINDS = ("deployments", "services", "horizontalpodautoscalers")
SETTINGS = {"namespace": "xprofiler", "pod-port": "9001", "image": "python:3.12-slim"}


class Cluster:
    """A cluster with the namespace of viewers."""

    def __init__(self) -> None:
        self.server = KubernetesServer()
        self.server.put("namespaces", {"metadata": {"name": "xprofiler"}})

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.server.environment()}

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "xprofiler", *arguments],
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, *arguments: str) -> Running:
        return Running(arguments, self.environment())

    def objects(self) -> list[str]:
        """Return the resources that viewers consist of."""
        return [found["metadata"]["name"] for kind in KINDS for found in self.server.objects(kind, "xprofiler")]

    def add_viewer(self, name: str, logs: str = LOGS, url: str = "", zone: str = ZONE) -> None:
        for made in manifest(name, zone, LogDirectory.parse(logs), "of-the-test", SETTINGS):
            if made["kind"] == "Service" and url and name in made["metadata"]["name"]:
                made["metadata"].setdefault("annotations", {})["proxy-url"] = url
            kinds = {"Service": "services", "Deployment": "deployments"}
            self.server.put(kinds.get(made["kind"], "horizontalpodautoscalers"), made, "xprofiler")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    with cluster.server:
        yield cluster


def _answer(cluster: Cluster, ready: int = 1) -> None:
    """Simulate the pods: they become ready, or stop being ready."""
    for found in cluster.server.objects("deployments", "xprofiler"):
        cluster.server.put("deployments", {**found, "status": {"readyReplicas": ready}}, "xprofiler")


def _announce(cluster: Cluster, url: str = "4f1e-dot-us-central1.example") -> None:
    """Simulate the init container, which publishes the link."""
    (service,) = [
        found
        for found in cluster.server.objects("services", "xprofiler")
        if found["metadata"]["labels"].get("role") == "xprofiler-proxy-service"
    ]
    service["metadata"].setdefault("annotations", {})["proxy-url"] = url
    cluster.server.put("services", service, "xprofiler")


@needs_kubectl
def test_a_viewer_is_created_listed_and_deleted(cluster: Cluster) -> None:
    running = cluster.start(*CREATE)
    wait_until(lambda: len(cluster.objects()) == 5)
    _announce(cluster)
    _answer(cluster)
    code, out = _end_with_output(running)
    assert (code, out) == (0, "\nStarted on URL https://4f1e-dot-us-central1.example\n")
    (viewer,) = json.loads(cluster.run("list", "--gke", "--format", "json").stdout)
    assert (viewer["log_directory"], viewer["zone"]) == (LOGS, ZONE)
    assert viewer["url"] == "https://4f1e-dot-us-central1.example"
    assert cluster.run("delete", "--gke", "-z", ZONE, "-l", LOGS, stdin="n\n").returncode == 1
    assert len(cluster.objects()) == 5
    deleted = cluster.run("delete", "--gke", "-z", ZONE, "-l", LOGS, stdin="y\n")
    assert deleted.returncode == 0, deleted.stderr
    assert cluster.objects() == []


@needs_kubectl
def test_only_what_was_confirmed_is_deleted(cluster: Cluster) -> None:
    cluster.add_viewer("one")
    cluster.add_viewer("two")
    cluster.run("delete", "--gke", "-z", ZONE, "-l", LOGS, stdin="n\ny\n")
    assert {name.split("-")[0] for name in cluster.objects()} == {"one"}


@needs_kubectl
def test_a_longer_path_is_another_log_directory(cluster: Cluster) -> None:
    cluster.add_viewer("one", f"{LOGS}/longer")
    assert json.loads(cluster.run("list", "--gke", "-l", LOGS, "--format", "json").stdout) == []
    assert cluster.run("delete", "--gke", "-z", ZONE, "-l", LOGS, stdin="y\n").returncode == 3


@needs_kubectl
def test_zones_are_distinguished(cluster: Cluster) -> None:
    cluster.add_viewer("one")
    cluster.add_viewer("two", zone="us-east5-a")
    listed = json.loads(cluster.run("list", "--gke", "-z", "us-east5-a", "--format", "json").stdout)
    assert [viewer["name"] for viewer in listed] == ["two"]


@needs_kubectl
def test_another_one_is_created_only_after_a_yes(cluster: Cluster) -> None:
    cluster.add_viewer("one")
    declined = cluster.run(*CREATE, stdin="n\n")
    assert declined.returncode == 1
    assert declined.stderr.startswith(f"Instance for {LOGS} already exists.\n")
    assert cluster.run(*CREATE, "--skip-creation-if-exists").returncode == 0
    assert len(cluster.objects()) == 5


@needs_kubectl
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(cluster: Cluster, number: int) -> None:
    running = cluster.start(*CREATE)
    wait_until(lambda: len(cluster.objects()) == 5)
    running.interrupt(number)
    assert running.end() == 130
    assert "Nothing remains" in running.errors
    assert cluster.objects() == []


@needs_kubectl
def test_a_viewer_that_is_never_registered_with_the_proxy_is_deleted(cluster: Cluster) -> None:
    ended = cluster.run(*CREATE, "--timeout", "0.3")
    assert ended.returncode == 5
    assert "Timed out to wait XProfiler start after 0.3 seconds." in ended.stderr
    assert cluster.objects() == []


@needs_kubectl
def test_a_link_without_a_running_xprof_is_not_printed(cluster: Cluster) -> None:
    with pytest.MonkeyPatch.context() as here:
        for name, value in cluster.server.environment().items():
            here.setenv(name, value)

        now = 0.0

        def pass_time(seconds: float) -> None:
            nonlocal now
            now += seconds
            _answer(cluster, ready=0)
            _announce(cluster)

        viewers, logs = ViewersOnGke(Console(), []), LogDirectory.parse(LOGS)
        setup = ViewerSetupOnGke(viewers, "shown", ZONE, logs, Console(), 2.5, clock=lambda: now, sleep=pass_time)
        with pytest.raises(TimedOutError, match="No pod of shown-") as raised:
            setup.make()
        assert exit_code_of(raised.value) == 5
        assert setup.remove() is None
    assert cluster.objects() == []


@needs_kubectl
@pytest.mark.parametrize("url", ["", "https://x.example"])
def test_an_existing_viewer_of_that_name_is_neither_changed_nor_deleted(cluster: Cluster, url: str) -> None:
    cluster.add_viewer("shared", "gs://other/run", url)
    before = [cluster.server.objects(kind, "xprofiler") for kind in KINDS]
    refused = cluster.run(*CREATE, "-n", "shared", "--timeout", "1", "--quiet")
    assert refused.returncode == 2, refused.stderr
    assert "a viewer shared already exists on this cluster" in refused.stderr
    assert [cluster.server.objects(kind, "xprofiler") for kind in KINDS] == before


@needs_kubectl
def test_objects_of_others_with_its_names_are_neither_changed_nor_deleted(cluster: Cluster) -> None:
    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shared-tb"}}
    cluster.server.put("deployments", theirs, "xprofiler")
    refused = cluster.run(*CREATE, "-n", "shared", "--quiet")
    assert refused.returncode == 2, refused.stderr
    assert "deployment.apps/shared-tb" in refused.stderr
    assert cluster.objects() == ["shared-tb"]


@needs_kubectl
def test_a_concurrent_object_of_that_name_is_kept(cluster: Cluster) -> None:
    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shared-agent"}}
    viewers = ViewersOnGke(Console(), [])
    setup = ViewerSetupOnGke(viewers, "shared", ZONE, LogDirectory.parse(LOGS), Console(), 1.0)
    with pytest.MonkeyPatch.context() as here:
        for name, value in cluster.server.environment().items():
            here.setenv(name, value)
        setup.check()
        cluster.server.put("deployments", theirs, "xprofiler")
        with pytest.raises(CommandError, match="already exists"):
            setup.make()
        assert len(cluster.objects()) == 5
        assert setup.remove() is None
    assert cluster.objects() == ["shared-agent"]


@needs_kubectl
def test_a_cluster_that_refuses_is_reported(cluster: Cluster) -> None:
    cluster.server.denied = {"list services"}
    assert cluster.run("list", "--gke").returncode == 4
    cluster.server.denied = set()
    cluster.server.faults.always(Status(500))
    assert cluster.run(*CREATE).returncode == 1


@needs_kubectl
def test_other_flags_change_the_template_and_unknown_ones_are_refused(cluster: Cluster) -> None:
    cluster.server.put("namespaces", {"metadata": {"name": "profiling"}})
    running = cluster.start(*CREATE, "--namespace=profiling", "--pod-port", "9009")
    wait_until(lambda: len(cluster.server.objects("services", "profiling")) == 2)
    running.interrupt()
    running.end()
    refused = cluster.run(*CREATE, "--unheard-of=1")
    assert refused.returncode == 2
    assert "--pod-port" in refused.stderr


def test_the_dry_run_prints_what_would_be_applied() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "xprofiler", *CREATE, "-n", "one", "--dry-run"], capture_output=True, text=True
    )
    printed = list(yaml.safe_load_all(ended.stdout))
    (creation,) = {one["metadata"]["labels"]["xprofiler-creation"] for one in printed}
    assert printed == manifest("one", ZONE, LogDirectory.parse(LOGS), creation, SETTINGS)


# --- The manifest ---


@pytest.mark.parametrize("path", ["a: b", "{{name}}", "$(HOME)", "'\"\\", "- x", "a,b", "ünï"])
def test_no_log_directory_changes_the_manifest(path: str) -> None:
    made = manifest("one", ZONE, LogDirectory.parse(f"gs://test-bucket/{path}"), "id", SETTINGS)
    plain = manifest("one", ZONE, LogDirectory.parse("gs://test-bucket/plain"), "id", SETTINGS)
    assert _without_texts(made) == _without_texts(plain)
    container = made[0]["spec"]["template"]["spec"]["containers"][0]
    assert _as_the_kubelet_reads(container["args"][2]) == f"gs://test-bucket/{path}"
    (annotated,) = [one for one in made if one["metadata"].get("annotations")]
    assert annotated["metadata"]["annotations"]["xprofiler_log_directory"] == f"gs://test-bucket/{path}"


def _without_texts(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_texts(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_without_texts(value) for value in part]
    return None if isinstance(part, str) and "gs://" in part else part


def _as_the_kubelet_reads(text: str) -> str:
    assert "$(" not in text.replace("$$", "")
    return text.replace("$$", "$")


@pytest.mark.parametrize("name", ["", "A", "a" * 50, "a b", "-a", "a-", "a,b", "a)"])
def test_a_name_that_is_not_valid_in_kubernetes_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name of a viewer"):
        manifest(name, ZONE, LogDirectory.parse(LOGS), "id", SETTINGS)


@pytest.mark.parametrize("port", ["0", "70000", "x", "-1", ""])
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match="--pod-port"):
        manifest("one", ZONE, LogDirectory.parse(LOGS), "id", {**SETTINGS, "pod-port": port})


# --- The init container ---


@needs_kubectl
def test_the_init_container_registers_annotates_and_writes_the_agents_parameters(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_viewer("one")
    proxy, metadata = ProxyServer(), VmMetadataServer(zone=ZONE)
    storage = CloudStorageServer(["dl-platform-public-configs"])
    configuration = {"agent-docker-containers": {"latest": {"proxy-urls": {"us-central1": [proxy.url]}}}}
    storage.write("dl-platform-public-configs", "proxy-agent-config.json", json.dumps(configuration).encode())
    (tmp_path / "token").write_text("token-of-the-pod")
    made = manifest("one", ZONE, LogDirectory.parse(LOGS), "id", SETTINGS)[3]
    (init,) = made["spec"]["template"]["spec"]["initContainers"]
    arguments = [_as_the_kubelet_reads(argument) for argument in init["args"]]
    assert init["command"] == ["python", "-c"]
    assert arguments[1:] == ["us-central1", "xprofiler", "one-agent-service", "/agent/agent.env"]
    environ = {
        **metadata.environment(),
        "STORAGE_EMULATOR_HOST": storage.url,
        "KUBERNETES_URL": cluster.server.url,
        "KUBERNETES_ACCOUNT_DIRECTORY": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", *arguments[:4], str(tmp_path / "agent.env")], env=environ, capture_output=True, text=True
    )
    proxy.shutdown()
    proxy.server_close()
    storage.close()
    metadata.close()
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "agent.env").read_text() == f"PROXY={proxy.url}/\nBACKEND=4f1e-backend\n"
    (viewer,) = json.loads(cluster.run("list", "--gke", "--format", "json").stdout)
    assert viewer["url"] == "https://4f1e-backend-dot-us-central1.example"


@pytest.mark.skipif(importlib.util.find_spec("xprof") is None, reason="needs xprof")
def test_the_program_of_the_pod_serves_the_log_directory(tmp_path: Path) -> None:
    made = manifest("one", ZONE, LogDirectory.parse(LOGS), "id", SETTINGS)[0]
    program = _as_the_kubelet_reads(made["spec"]["template"]["spec"]["containers"][0]["args"][1])
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_until_answered(f"http://127.0.0.1:{port}", 2 * LONG_SECONDS, lambda: process.poll() is None)
    finally:
        process.kill()
        process.wait()


def test_a_ttl_is_for_vms() -> None:
    ended = subprocess.run([sys.executable, "-m", "xprofiler", *CREATE, "--ttl", "8h"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--ttl" in ended.stderr


def test_programs_for_pods_and_vms_are_in_the_package() -> None:
    folder = STARTUP_SCRIPT.parent
    for name in ("startup_script.sh", "gke_manifest.yaml", "gke_agent.py", "gke_viewer.py"):
        assert (folder / name).is_file()


def _end_with_output(running: Running) -> tuple[int, str]:
    assert running.process.stdout is not None
    out = running.process.stdout.read()
    return running.end(), out
