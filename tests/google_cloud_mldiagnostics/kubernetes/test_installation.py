"""The manifests in a real API server: accepted, used and removed by the real kubectl."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, WEBHOOK_CERTIFICATE, WEBHOOK_CONFIGURATION

from ...deploy.charts import CRD, MANIFESTS, NAMES, OPERATOR, WEBHOOK, NoRendererError, documents, manifest, render
from ...kube_api import KubeApi, UnavailableError, shared_server
from .clusters import CONFIGURATIONS, Webhook, add_kind, create

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

_CONFIGURATION = f"{CONFIGURATIONS}/{WEBHOOK_CONFIGURATION}"
_CERTIFICATES = [("Certificate", "certificates"), ("Issuer", "issuers")]
# This server is older than the budgets of version 1, and drops what it does not know of the schema.
_FOR_OLD_SERVER = {"patch": yaml.safe_dump([{"op": "replace", "path": "/apiVersion", "value": "policy/v1beta1"}])}
_FOR_OLD_SERVER_TARGET = {"target": {"kind": "PodDisruptionBudget"}}


def kubectl(server: KubeApi, *arguments: str) -> str:
    """Return the output of kubectl.

    Raises:
        AssertionError: It failed.
    """
    command = ["kubectl", f"--kubeconfig={server.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare(server: KubeApi) -> None:
    """Create the namespace, as the user does, and the kinds of cert-manager."""
    server.apply("/api/v1/namespaces", {"metadata": {"name": "gke-mldiagnostics"}})
    for kind, resource in _CERTIFICATES:
        add_kind(server, "cert-manager.io", "v1", kind, resource)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """Start a server of this module alone: an installed webhook is asked for the pods of all tests."""
    try:
        with shared_server(tmp_path_factory.mktemp("kube-api")) as server:
            prepare(server)
            yield server
    except UnavailableError as error:
        pytest.skip(f"no Kubernetes API server: {error}")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of each manifest."""
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    """Return a folder with an overlay of a manifest, for this old server."""
    return overlay(name, tmp_path)


def overlay(name: str, tmp_path: Path) -> Path:
    shutil.copytree(MANIFESTS / name, tmp_path / name)
    path = tmp_path / f"{name}-overlay"
    path.mkdir()
    patches = [{**_FOR_OLD_SERVER_TARGET, **_FOR_OLD_SERVER}]
    text = yaml.safe_dump({"resources": [f"../{name}"], "patches": patches})
    (path / "kustomization.yaml").write_text(text)
    return path


def test_the_api_server_accepts_each_object(kube_api: KubeApi, name: str, folder: Path) -> None:
    prepare(kube_api)
    done = kubectl(kube_api, "apply", "--dry-run=server", "--validate=false", "-k", str(folder))
    assert len(done.splitlines()) == sum(len(documents(path.read_text())) for path in files(name))


def files(name: str) -> list[Path]:
    return [manifest(name), *([MANIFESTS / OPERATOR / CRD] if name == OPERATOR else [])]


@pytest.mark.slow
def test_a_user_applies_twice_and_deletes_the_objects(own_server: KubeApi, name: str, folder: Path) -> None:
    kubectl(own_server, "apply", "--validate=false", "-k", str(folder))
    kubectl(own_server, "apply", "--validate=false", "-k", str(folder))
    query = ["-n", "gke-mldiagnostics", "-o", "jsonpath={.metadata.generation}"]
    assert kubectl(own_server, "get", "deployment", name, *query) == "1", "the second apply has started new pods"
    kubectl(own_server, "delete", "--wait=false", "-k", str(folder))
    path = f"/apis/apps/v1/namespaces/gke-mldiagnostics/deployments/{name}"
    assert own_server.refusal("GET", path) == 404


@pytest.mark.slow
@pytest.mark.parametrize("order", ["configuration first", "configuration last"])
def test_pods_start_before_during_and_after_an_installation(own_server: KubeApi, tmp_path: Path, order: str) -> None:
    namespace = f"pods-{order.rpartition(' ')[2]}"
    labels = {"managed-mldiagnostics-gke": "true"}
    own_server.apply("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
    create(own_server, namespace, "Pod", "before")
    folder = overlay(WEBHOOK, tmp_path)
    kubectl(own_server, "apply", "-k", str(folder))
    create(own_server, namespace, "Pod", "without-a-server")
    if order == "configuration first":
        own_server.call("DELETE", _CONFIGURATION)
        create(own_server, namespace, "Pod", "without-a-configuration")
        kubectl(own_server, "delete", "--wait=false", "--ignore-not-found", "-k", str(folder))
    else:
        kubectl(own_server, "delete", "deployment,service", WEBHOOK, "-n", "gke-mldiagnostics")
        create(own_server, namespace, "Pod", "without-a-service")
        kubectl(own_server, "delete", "--wait=false", "--ignore-not-found", "-k", str(folder))
    create(own_server, namespace, "Pod", "after")
    assert own_server.refusal("GET", _CONFIGURATION) == 404


@pytest.mark.slow
def test_a_second_apply_keeps_what_cert_manager_has_set(own_server: KubeApi, tmp_path: Path) -> None:
    folder = overlay(WEBHOOK, tmp_path)
    kubectl(own_server, "apply", "-k", str(folder))
    change = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle()} for index in range(6)
    ]
    own_server.call("PATCH", _CONFIGURATION, change, kind="application/json-patch+json")
    kubectl(own_server, "apply", "-k", str(folder))
    found = own_server.call("GET", _CONFIGURATION)["webhooks"]
    assert [entry["clientConfig"]["caBundle"] for entry in found] == [bundle()] * 6
    kubectl(own_server, "delete", "--wait=false", "-k", str(folder))


def bundle() -> str:
    return "QUJD"


@pytest.mark.slow
def test_a_webhook_that_signs_its_certificate_needs_no_other_rights_than_its_chart_gives(
    own_server: KubeApi, tmp_path: Path
) -> None:
    pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.
    try:
        text = render(WEBHOOK, {"certificates": {"mode": "selfSigned"}, "podDisruptionBudget": {"enabled": False}})
    except NoRendererError as error:
        pytest.skip(str(error))
    path = tmp_path / "rendered.yaml"
    path.write_text(text)
    kubectl(own_server, "apply", "-f", str(path))
    settings: dict[str, Any] = {"configuration": WEBHOOK_CONFIGURATION, "namespace": NAMESPACE, "stand_down": "auto"}
    with Webhook(own_server, tmp_path, **settings) as webhook:
        entries = own_server.call("GET", _CONFIGURATION)["webhooks"]
        assert len({entry["clientConfig"]["caBundle"] for entry in entries}) == 1
    secret = own_server.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{WEBHOOK_CERTIFICATE}")
    assert {"ca.crt", "tls.crt", "tls.key"} <= set(secret["data"])
    assert not re.search(r"\b403\b", webhook.log)
    kubectl(own_server, "apply", "-f", str(path))
    again = own_server.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{WEBHOOK_CERTIFICATE}")
    assert again["data"] == secret["data"], "the second apply has emptied the Secret"
    kubectl(own_server, "delete", "--wait=false", "-f", str(path))


@pytest.mark.slow
def test_the_operator_has_the_rights_of_its_manifest_and_the_webhook_those_of_its_own(
    own_server: KubeApi, tmp_path: Path
) -> None:
    for each in NAMES:
        kubectl(own_server, "apply", "--validate=false", "-k", str(overlay(each, tmp_path)))
    own_server.wait_until_served("/apis/diagon.gke.io/v1alpha1/mldiagnosticsconnections")
    objects = "/apis/diagon.gke.io/v1alpha1/mldiagnosticsconnections"
    for token, path, is_allowed in [
        ("operator", objects, True),
        ("operator", "/api/v1/namespaces/default", True),
        ("operator", "/api/v1/pods", False),
        ("operator", "/api/v1/namespaces/gke-mldiagnostics/secrets", False),
        ("operator", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x", False),
        ("webhook", "/api/v1/namespaces/default", True),
        ("webhook", CONFIGURATIONS, True),
        ("webhook", "/api/v1/pods", False),
        ("webhook", objects, False),
    ]:
        assert may_get(own_server, path, token) == is_allowed, (token, path)
    lease = {"metadata": {"name": "test"}}
    leases = "/apis/coordination.k8s.io/v1/namespaces/gke-mldiagnostics/leases"
    created = own_server.call("POST", leases, lease, token="operator")
    own_server.call("PUT", f"{leases}/test", created, token="operator")


def may_get(server: KubeApi, path: str, token: str) -> bool:
    try:
        return bool(server.call("GET", path, token=token))
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 403:
                raise
        return False
