"""`mldiagnostics kubernetes`: a check of a cluster, objects to apply, and kubeconfigs, with a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.kubeconfig import read_kubeconfig
from google_cloud_mldiagnostics.exceptions import KubernetesConfigurationError, KubernetesUnreachableError

from ...kube_api import ADMIN, KubeApi
from ...waiting import bound_port
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


def test_each_thing_that_a_cluster_lacks_is_named_with_the_command_that_fixes_it(
    kube_api: KubeApi, namespace: str
) -> None:
    code, found = findings(kube_api, f"--namespace={namespace}")
    assert code == 1
    assert found["API server"]["state"] == "ok"
    assert found["webhook configuration"]["state"] == "missing"
    assert found["webhook configuration"]["remedy"].startswith("helm install mldiagnostics-injection-webhook ")
    assert found["operator"]["state"] == "missing"
    assert found["labels"]["remedy"] == f"kubectl label namespace {namespace} managed-mldiagnostics-gke=true"
    assert found["time to admit a pod"]["detail"].endswith(" ms without the webhook, which is not installed")
    assert found["your rights"]["state"] == "ok"
    assert "1.36" in found["policy instead of the webhook"]["detail"]
    assert found["profiler port of pods"]["state"] == "cannot tell"


def test_a_pod_of_a_workload_is_tried_and_not_kept(kube_api: KubeApi, labelled: str, webhook: Webhook) -> None:
    create(kube_api, labelled, "JobSet", "train")
    _, found = findings(kube_api, f"--namespace={labelled}", "--workload=jobset/train")
    assert found["labels"]["detail"] == f"namespace {labelled}"
    assert found["variables of a pod"]["detail"] == "a pod of JobSet train has both"
    assert kube_api.call("GET", f"/api/v1/namespaces/{labelled}/pods")["items"] == []


def test_a_cluster_that_does_not_answer_is_one_finding(tmp_path: Path) -> None:
    path = tmp_path / "config"
    with bound_port() as port:
        path.write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{port}")))
        done = mldiagnostics("check", f"--kubeconfig={path}")
    assert done.returncode == 1
    assert "did not answer" in done.stdout
    assert "webhook" not in done.stdout


def test_a_user_without_rights_has_no_answers_and_reads_which_rights_are_missing(
    kube_api: KubeApi, namespace: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig(kube_api.url, {"token": "stranger"}, **_authority(kube_api))))
    done = mldiagnostics("check", f"--kubeconfig={path}", f"--namespace={namespace}", "--format=json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {each["question"]: each for each in json.loads(done.stdout)["findings"]}
    assert f"create pods in {namespace}" in found["your rights"]["detail"]
    unanswered = {"kind of connection objects", "webhook configuration", "labels", "operator", "time to admit a pod"}
    assert {found[question]["state"] for question in unanswered} == {"cannot tell"}
    assert found["labels"]["remedy"] == "kubectl auth can-i --list"


def test_a_definition_of_another_version_is_named_with_what_differs(own_kind: KubeApi, namespace: str) -> None:
    _, found = findings(own_kind, f"--namespace={namespace}")
    assert found["kind of connection objects"]["detail"].endswith(
        "differs from that of this command in versions[0].schema.openAPIV3Schema.properties.spec.properties."
        "triggerCapture.properties.durationSeconds.maximum"
    )


@pytest.fixture
def own_kind(connections: KubeApi) -> Iterator[KubeApi]:
    """Change the definition of connections for one test."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mldiagnosticsconnections.diagon.gke.io"
    where = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/triggerCapture/properties"

    def change(most: int) -> None:
        patch = [{"op": "replace", "path": f"{where}/durationSeconds/maximum", "value": most}]
        connections.call("PATCH", path, patch, kind="application/json-patch+json")

    change(60)
    yield connections
    change(3600)


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


async def answers(path: Path | None, count: int = 1, context: str | None = None, **environ: str) -> list[str]:
    """Return the name of the namespace `default`, asked for several times at once."""
    async with KubernetesApi(read_kubeconfig(path, context, environ)) as api:
        found = await asyncio.gather(*(api.get("/api/v1/namespaces/default") for _ in range(count)))
    return [each["metadata"]["name"] for each in found]


def connects(path: Path | None, context: str | None = None, **environ: str) -> bool:
    return asyncio.run(answers(path, 1, context, **environ)) == ["default"]


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
    assert asyncio.run(answers(path, 3)) == ["default"] * 3
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(("name", "is_known"), [("kubernetes.default", True), ("elsewhere", False)])
def test_a_server_is_known_by_the_name_in_the_file(
    kube_api: KubeApi, tmp_path: Path, name: str, is_known: bool
) -> None:
    path = tmp_path / "config"
    named = {"tls-server-name": name, **_authority(kube_api)}
    path.write_text(json.dumps(kubeconfig(kube_api.url, {"token": ADMIN}, **named)))
    if is_known:
        assert connects(path)
    else:
        with pytest.raises(KubernetesUnreachableError, match="not valid for 'elsewhere'"):
            connects(path)


def test_a_proxy_is_asked_for_the_server(kube_api: KubeApi, tmp_path: Path) -> None:
    path = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as proxy, ThreadPoolExecutor() as threads:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        authority = _authority(kube_api)
        path.write_text(json.dumps(kubeconfig(kube_api.url, {"token": ADMIN}, **{"proxy-url": url}, **authority)))
        asked = threads.submit(connects, path)
        connection, _ = proxy.accept()
        with connection:
            request = connection.recv(1000).decode()
            connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        assert request.startswith(f"CONNECT {kube_api.url.removeprefix('https://')} HTTP/1.1")
        with pytest.raises(KubernetesUnreachableError, match="502"):
            asked.result()
    path.write_text(json.dumps(kubeconfig(kube_api.url, None, **{"proxy-url": "socks5://127.0.0.1:1"})))
    with pytest.raises(KubernetesConfigurationError, match="not an HTTP proxy"):
        connects(path)


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
        ({"token": "x", "as": "other"}, "identifies itself by as, which is not supported here"),
        ({"client-certificate-data": "?"}, "a certificate of the kubeconfig cannot be used"),
    ],
)
def test_what_is_not_supported_is_reported(tmp_path: Path, user: dict[str, Any], message: str) -> None:
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
            connects(path)


def test_a_context_that_is_missing_is_named_beside_those_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig("https://127.0.0.1:1")))
    with pytest.raises(KubernetesConfigurationError, match="no context 'there': there are here"):
        read_kubeconfig(path, "there")
    with pytest.raises(KubernetesConfigurationError, match="get the credentials of your cluster"):
        read_kubeconfig(None, environ={"HOME": str(tmp_path)})


def _authority(server: KubeApi) -> dict[str, str]:
    return {"certificate-authority": str(server.authority)}
