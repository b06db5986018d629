"""`mldiagnostics kubernetes`: a check of a cluster, objects to apply, and kubeconfigs, with a real API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.kubeconfig import read_kubeconfig
from google_cloud_mldiagnostics.exceptions import KubernetesConfigurationError

from ...kube_api import ADMIN, KubeApi
from ...waiting import free_port
from .clusters import Webhook, create

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def mldiagnostics(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "google_cloud_mldiagnostics", "kubernetes", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environ}
    )


def findings(server: KubeApi, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = mldiagnostics("check", f"--kubeconfig={server.kubeconfig}", "--format=json", *arguments)
    assert not done.stderr, done.stderr
    return done.returncode, {each["question"]: each for each in json.loads(done.stdout)["findings"]}


# --- check --------------------------------------------------------------------------------------------


def test_each_thing_that_a_cluster_lacks_is_named_with_the_command_that_mends_it(
    kube_api: KubeApi, namespace: str
) -> None:
    code, found = findings(kube_api, f"--namespace={namespace}")
    assert code == 1
    assert found["API server"]["state"] == "ok"
    assert found["webhook configuration"]["state"] == "missing"
    assert found["webhook configuration"]["remedy"].startswith("helm install mldiagnostics-injection-webhook ")
    assert found["operator"]["state"] == "missing"
    assert found["labels"]["remedy"] == f"kubectl label namespace {namespace} managed-mldiagnostics-gke=true"
    assert "ms without the webhook" in found["time to admit a pod"]["detail"]
    assert "1.36" in found["policy instead of the webhook"]["detail"]
    assert found["profiler port of pods"]["state"] == "cannot tell"


def test_a_pod_of_a_workload_is_tried_and_not_kept(kube_api: KubeApi, labelled: str, webhook: Webhook) -> None:
    create(kube_api, labelled, "JobSet", "train")
    _, found = findings(kube_api, f"--namespace={labelled}", "--workload=jobset/train")
    assert found["labels"]["detail"] == f"namespace {labelled}"
    assert found["variables of a pod"]["detail"] == "a pod of JobSet train has both"
    assert kube_api.call("GET", f"/api/v1/namespaces/{labelled}/pods")["items"] == []


def test_a_cluster_that_does_not_answer_is_one_finding(tmp_path: Path) -> None:
    config = kubeconfig(f"http://127.0.0.1:{free_port()}")
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    done = mldiagnostics("check", f"--kubeconfig={path}")
    assert done.returncode == 1
    assert "did not answer" in done.stdout
    assert "webhook" not in done.stdout


# --- What is applied ----------------------------------------------------------------------------------


@needs_kubectl
@pytest.mark.parametrize("example", ["jobset", "rayjob", "lws", "connection"])
def test_the_api_server_accepts_each_example(connections: KubeApi, example: str) -> None:
    connections.apply("/api/v1/namespaces", {"metadata": {"name": "ai-workloads"}})
    printed = mldiagnostics("example", example)
    assert printed.returncode == 0, printed.stderr
    apply = ["kubectl", f"--kubeconfig={connections.kubeconfig}", "apply", "--dry-run=server", "-f", "-"]
    done = subprocess.run(apply, input=printed.stdout, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_policy_is_printed_for_a_cluster() -> None:
    done = mldiagnostics("policy", "--cluster=projects/p/locations/l/clusters/c")
    kinds = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert set(kinds) == {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ConfigMap"}
    assert kinds["ConfigMap"]["data"] == {"cluster": "projects/p/locations/l/clusters/c"}


# --- kubeconfig ---------------------------------------------------------------------------------------


def kubeconfig(server: str, user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "clusters": [{"name": "one", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
    }


async def version(path: Path | None, context: str | None = None, **environ: str) -> str:
    async with KubernetesApi(read_kubeconfig(path, context, environ)) as api:
        return str((await api.get("/api/v1/namespaces/default"))["metadata"]["name"])


def connects(path: Path | None, context: str | None = None, **environ: str) -> bool:
    import asyncio

    return asyncio.run(version(path, context, **environ)) == "default"


def test_a_token_in_the_file_and_one_of_a_file_beside_it_are_used(kube_api: KubeApi, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig(kube_api.url, {"token": ADMIN}, **_authority(kube_api))))
    assert connects(path)
    (tmp_path / "token").write_text(ADMIN)
    path.write_text(json.dumps(kubeconfig(kube_api.url, {"tokenFile": "token"}, **_authority(kube_api))))
    assert connects(path)


def test_a_credential_plugin_is_run(kube_api: KubeApi, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    answer = {"kind": "ExecCredential", "status": {"token": ADMIN, "expirationTimestamp": "2999-01-01T00:00:00Z"}}
    plugin.write_text(
        f"#!/bin/sh\necho run >> {tmp_path}/runs\ntest -n \"$KUBERNETES_EXEC_INFO\" && echo '{json.dumps(answer)}'\n"
    )
    plugin.chmod(0o700)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(plugin)}}
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig(kube_api.url, user, **_authority(kube_api))))
    connection = read_kubeconfig(path)
    assert {connection.headers(0.0)["Authorization"] for _ in range(3)} == {f"Bearer {ADMIN}"}
    assert (tmp_path / "runs").read_text() == "run\n"
    assert connects(path)


def test_several_files_are_one_and_the_first_entry_of_a_name_is_used(kube_api: KubeApi, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    whole = kubeconfig(kube_api.url, {"token": ADMIN}, **_authority(kube_api))
    first.write_text(json.dumps({"users": whole.pop("users")}))
    whole["users"] = [{"name": "me", "user": {"token": "other"}}]
    second.write_text(json.dumps(whole))
    assert connects(None, KUBECONFIG=f"{first}:{tmp_path}/missing:{second}")


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"username": "me", "password": "x"}, "identifies itself by username"),
        ({"auth-provider": {"name": "gcp"}}, "identifies itself by auth-provider"),
        ({"client-certificate-data": "?"}, "a certificate of the kubeconfig cannot be used"),
    ],
)
def test_what_is_not_supported_is_said(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig("https://127.0.0.1:1", user)))
    with pytest.raises(KubernetesConfigurationError, match=message):
        read_kubeconfig(path)


def test_a_plugin_that_is_missing_or_fails_is_named_with_its_hint(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for command, message in (("no-such-plugin", "is not installed. Install it"), ("false", "false failed")):
        user = {"exec": {"command": command, "installHint": "Install it"}}
        path.write_text(json.dumps(kubeconfig("https://127.0.0.1:1", user)))
        with pytest.raises(KubernetesConfigurationError, match=message):
            read_kubeconfig(path).headers(0.0)


def test_a_context_that_is_missing_is_named_beside_those_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig("https://127.0.0.1:1")))
    with pytest.raises(KubernetesConfigurationError, match="no context 'there': there are here"):
        read_kubeconfig(path, "there")
    with pytest.raises(KubernetesConfigurationError, match="get the credentials of your cluster"):
        read_kubeconfig(None, environ={"HOME": str(tmp_path)})


def _authority(server: KubeApi) -> dict[str, str]:
    return {"certificate-authority": str(server.authority)}
