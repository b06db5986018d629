"""A labelled namespace, a run in it and its profile: webhook, SDK and operator, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...kube_api import KubeApi
from ...waiting import free_port, wait_until
from .clusters import Webhook, create, variables
from .operators import final_status, manifest, path_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a process the host name of its pod"),
]

_TRAINER = """
import sys, time
from google_cloud_mldiagnostics import machinelearning_run, metrics
import jax, jax.numpy as jnp
run = machinelearning_run(name="llama", gcs_path=sys.argv[1], on_demand_xprof=True)
print(run.name, flush=True)
step, x = jax.jit(lambda x: x @ x / 100), jnp.ones((100, 100))
while True:
    x = step(x).block_until_ready()
    time.sleep(0.001)
"""


@contextlib.contextmanager
def operator(server: KubeApi, namespace: str, *, lease_namespace: str = "") -> Iterator[subprocess.Popen[bytes]]:
    ports = [f"--probe-port={free_port()}", f"--metrics-port={free_port()}"]
    names = [f"--namespace={namespace}", f"--lease-namespace={lease_namespace or namespace}"]
    command = [sys.executable, "-m", "google_cloud_mldiagnostics", "kubernetes", "operator", "--host=127.0.0.1"]
    process = subprocess.Popen([*command, f"--kubeconfig={server.kubeconfig}", "--local-storage", *names, *ports])
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(30) == 0


@contextlib.contextmanager
def trainer(pod: dict[str, Any], location: Path, folder: Path) -> Iterator[str]:
    """Run the container of a pod, with its variables; yield the name of its run."""
    of_kubelet = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    environ = {**os.environ, **of_kubelet, **variables(pod), "JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_DIR": str(folder)}
    host = 'hostname train-workers-0-0 && exec "$@"'  # As the kubelet sets it, without the end of the pod's name.
    command = ["unshare", "--uts", "sh", "-c", host, "sh", sys.executable, "-c", _TRAINER, str(location)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def pod_of(server: KubeApi, namespace: str, jobset: dict[str, Any], name: str) -> dict[str, Any]:
    """Create the Job and the pod of a JobSet, as its controllers do, and make the pod Running."""
    job = create(server, namespace, "Job", name, jobset)
    create(server, namespace, "Pod", name, job)
    return make_running(server, namespace, name)


def make_running(server: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    """Make a pod Running, as a kubelet does, and return it."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    server.call("PATCH", f"{path}/status", status, kind="application/merge-patch+json")
    return server.call("GET", path)


def show(run: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "google_cloud_mldiagnostics", "show", run, "--format=json"]
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environ)
    return dict(json.loads(done.stdout))


def is_recorded(run: str, folder: Path) -> bool:
    """Return True if the process has seen a profile, and recorded its size."""
    return any(host["size_bytes"] for profile in show(run, folder)["profiles"] for host in profile["hosts"])


def capture_folder(run: str, folder: Path) -> str:
    """Wait until the process can be profiled, and return the folder in which it searches for profiles."""

    def find() -> str:
        found = show(run, folder)["attempts"][-1]["processes"]
        return str(found[0]["capture_folder"] or "")

    return wait_until(find)


def test_a_jobset_of_a_labelled_namespace_is_a_run_with_a_profile_that_an_object_captures(
    connections: KubeApi, labelled: str, webhook: Webhook, tmp_path: Path
) -> None:
    server, location, folder = connections, tmp_path / "profiles", tmp_path / "diagnostics"
    jobset = create(server, labelled, "JobSet", "train")
    pod = pod_of(server, labelled, jobset, "train-workers-0-0-b4c9d")
    with operator(server, labelled):
        with trainer(pod, location, folder) as run:
            created = jobset["metadata"]["creationTimestamp"]
            digits = "".join(filter(str.isdigit, created))
            assert digits[:8] in run, run
            root = str(Path(capture_folder(run, folder)).parents[1])
            document = manifest(labelled, "profile", "train-workers-0-0-b4c9d", 9999, root)
            server.call("POST", path_of(labelled), document)
            status = final_status(server, labelled, "profile")
            assert status["phase"] == "Succeeded", status
            session = Path(status["captureResult"]["outputLocation"]).name
            wait_until(lambda: is_recorded(run, folder))
            (profile,) = show(run, folder)["profiles"]
            assert profile["session"] == session
            assert [host["host"] for host in profile["hosts"]] == ["train-workers-0-0-b4c9d"]
        again = pod_of(server, labelled, jobset, "train-workers-0-0-x7k2p")
        with trainer(again, location, folder) as restarted:
            assert restarted == run
            wait_until(lambda: len(show(run, folder)["attempts"]) == 2)
