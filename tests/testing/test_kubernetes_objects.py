"""Objects of a loopback cluster, as the real kubectl applies, reads, watches and deletes them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_testing.faults import Status, Truncate
from ml_diagnostics_testing.http_server import ApiError

from ..loopback.kubernetes import KubernetesServer
from ..loopback.kubernetes.patches import patched
from ..loopback.kubernetes.selectors import fields_match, labels_match
from .kubectl import Kubectl, manifest, needs_kubectl

VIEWER = """
apiVersion: v1
kind: Namespace
metadata: {name: xprofiler}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: viewer, namespace: xprofiler, labels: {instance: one}}
spec:
  replicas: 2
  selector: {matchLabels: {app: viewer}}
  template:
    metadata: {labels: {app: viewer}}
    spec:
      containers:
      - name: server
        image: first
        ports: [{containerPort: 9001}]
        env: [{name: A, value: "1"}, {name: B, value: "2"}]
---
apiVersion: v1
kind: Service
metadata: {name: viewer, namespace: xprofiler, labels: {instance: one, role: proxy}}
spec: {selector: {app: viewer}, ports: [{port: 80, targetPort: 9001}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: viewer, namespace: xprofiler, labels: {instance: one}}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: viewer}, maxReplicas: 36}
"""


@pytest.fixture
def kubectl(kubernetes_server: KubernetesServer) -> Kubectl:
    return Kubectl(kubernetes_server)


def names(server: KubernetesServer, plural: str, namespace: str = "") -> list[str]:
    return [one["metadata"]["name"] for one in server.objects(plural, namespace)]


def container(server: KubernetesServer) -> Any:
    return server.objects("deployments")[0]["spec"]["template"]["spec"]["containers"][0]


@contextmanager
def refused_at_most_with(*codes: int) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.code not in codes:
            raise


# --- Reading --------------------------------------------------------------------------------------------


@needs_kubectl
def test_pods_are_shown_with_their_nodes_as_the_readme_asks(
    kubectl: Kubectl, kubernetes_server: KubernetesServer
) -> None:
    kubernetes_server.add_pod("worker-0", node="tpu-node-7")
    heading, row = kubectl("get", "pods", "-o", "wide").text.splitlines()
    assert (heading.split()[0], heading.split()[6]) == ("NAME", "NODE")
    assert (row.split()[0], row.split()[2], row.split()[6]) == ("worker-0", "Running", "tpu-node-7")


@needs_kubectl
def test_pods_are_found_by_label_name_and_namespace(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.add_pod("worker-0", labels={"job": "a"})
    kubernetes_server.add_pod("worker-1", labels={"job": "b"})
    kubernetes_server.add_pod("worker-2", namespace="other", labels={"job": "b"})

    def found(*arguments: str) -> list[str]:
        return kubectl("get", "pods", "-o", "name", *arguments).text.split()

    assert found() == ["pod/worker-0", "pod/worker-1"]
    assert found("-A") == ["pod/worker-0", "pod/worker-1", "pod/worker-2"]
    assert found("-n", "other") == ["pod/worker-2"]
    assert found("-l", "job in (b,c)") == ["pod/worker-1"]
    assert found("-l", "job!=b") == ["pod/worker-0"]
    assert found("--field-selector", "metadata.name=worker-1") == ["pod/worker-1"]
    assert json.loads(kubectl("get", "pod", "worker-1", "-o", "json").text)["metadata"]["labels"] == {"job": "b"}


@needs_kubectl
def test_a_missing_object_is_reported(kubectl: Kubectl) -> None:
    done = kubectl("get", "service", "viewer")
    assert done.code == 1
    assert done.errors == 'Error from server (NotFound): services "viewer" not found\n'


@needs_kubectl
def test_a_kubeconfig_can_name_its_context_and_namespace(
    kubernetes_server: KubernetesServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubernetes_server.add_pod("worker-0", namespace="team")
    path = tmp_path / "config"
    path.write_text(kubernetes_server.kubeconfig(context="gke_p_r_c", namespace="team"))
    kubectl.settings["KUBECONFIG"] = str(path)
    assert kubectl("config", "current-context").text == "gke_p_r_c\n"
    assert kubectl("--context=gke_p_r_c", "get", "pods", "-o", "name").text == "pod/worker-0\n"


@needs_kubectl
def test_what_changes_can_be_waited_for(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    service = {"metadata": {"name": "viewer"}}
    kubernetes_server.put("services", service)
    wait = ["kubectl", "wait", "service/viewer", "--for=jsonpath={.metadata.annotations.proxy-url}=u", "--timeout=30s"]
    with subprocess.Popen(wait, env=kubectl.environment, stdout=subprocess.PIPE) as process:
        while not any("watch=true" in request.path for request in kubernetes_server.requests_for("list")):
            assert process.poll() is None
        kubernetes_server.put("services", {"metadata": {"name": "viewer", "annotations": {"proxy-url": "u"}}})
        assert process.communicate(timeout=30)[0] == b"service/viewer condition met\n"


# --- Changing -------------------------------------------------------------------------------------------


@needs_kubectl
def test_what_is_applied_is_there_and_applied_again_is_unchanged(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    path = manifest(tmp_path, VIEWER)
    assert kubectl("apply", "-f", path).text.split()[1::2] == ["created"] * 4
    version = kubernetes_server.objects("deployments")[0]["metadata"]["resourceVersion"]
    assert kubectl("apply", "-f", path).text.split()[1::2] == ["unchanged"] * 4
    assert kubernetes_server.objects("deployments")[0]["metadata"]["resourceVersion"] == version
    assert kubectl("-n", "xprofiler", "rollout", "status", "deployment/viewer").code == 0


@needs_kubectl
def test_an_applied_change_changes_only_what_it_names(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    kubectl("apply", "-f", manifest(tmp_path, VIEWER))
    kubectl("-n", "xprofiler", "annotate", "service", "viewer", "proxy-url=https://x")
    changed = VIEWER.replace("first", "second").replace(', {name: B, value: "2"}', "")
    message = kubectl("apply", "-f", manifest(tmp_path, changed)).text
    assert message.split()[1::2] == ["unchanged", "configured", "unchanged", "unchanged"]
    assert container(kubernetes_server) == {
        "name": "server",
        "image": "second",
        "ports": [{"containerPort": 9001}],
        "env": [{"name": "A", "value": "1"}],
    }
    url = kubectl("-n", "xprofiler", "get", "service", "viewer", "-o", "jsonpath={.metadata.annotations.proxy-url}")
    assert url.text == "https://x"


@needs_kubectl
def test_a_dry_run_changes_nothing(kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path) -> None:
    kubectl("create", "-f", manifest(tmp_path, VIEWER.split("---")[0]))
    done = kubectl("apply", "--dry-run=server", "-f", manifest(tmp_path, VIEWER))
    assert done.text.count("(server dry run)") == 4
    assert kubectl("delete", "--dry-run=server", "namespace", "xprofiler").code == 0
    assert (names(kubernetes_server, "deployments"), "xprofiler" in names(kubernetes_server, "namespaces")) == (
        [],
        True,
    )


@needs_kubectl
def test_a_server_side_apply_makes_and_changes(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    for image in ("first", "second"):
        path = manifest(tmp_path, VIEWER.replace("first", image))
        assert kubectl("apply", "--server-side", "-f", path).code == 0
        assert container(kubernetes_server)["image"] == image


@needs_kubectl
def test_nothing_is_made_twice_or_in_a_namespace_that_is_not_there(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    service = manifest(tmp_path, VIEWER.split("---")[2])
    assert 'namespaces "xprofiler" not found' in kubectl("create", "-f", service).errors
    kubernetes_server.put("namespaces", {"metadata": {"name": "xprofiler"}})
    assert kubectl("create", "-f", service).code == 0
    assert "AlreadyExists" in kubectl("create", "-f", service).errors


@needs_kubectl
def test_delete_all_ends_what_a_selector_names_and_nothing_else(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    for instance in ("one", "two"):
        text = VIEWER.replace("instance: one", f"instance: {instance}").replace("name: viewer", f"name: {instance}")
        kubectl("apply", "-f", manifest(tmp_path, text))
    done = kubectl("delete", "all", "--namespace=xprofiler", "-l", "instance=one")
    assert done.text.split()[1::3] == ['"one"'] * 3
    left = [names(kubernetes_server, plural) for plural in ("services", "deployments", "horizontalpodautoscalers")]
    assert left == [["two"]] * 3
    assert kubectl("delete", "all", "--namespace=xprofiler", "-l", "instance=one").text == "No resources found\n"


@needs_kubectl
def test_a_namespace_goes_with_all_that_is_in_it(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    kubectl("apply", "-f", manifest(tmp_path, VIEWER))
    pod = kubernetes_server.add_pod("worker-0", namespace="xprofiler")
    assert kubectl("delete", "namespace", "xprofiler").code == 0
    assert kubernetes_server.objects("services") == kubernetes_server.objects("deployments") == []
    assert not pod.is_alive


@needs_kubectl
def test_a_test_can_play_the_controllers(kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path) -> None:
    def annotate(created: Any) -> None:
        if created["kind"] == "Service":
            created["metadata"]["annotations"] = {"proxy-url": "https://x"}
            kubernetes_server.put("services", created, created["metadata"]["namespace"])

    kubernetes_server.on_created(annotate)
    kubectl("apply", "-f", manifest(tmp_path, VIEWER))
    wait = "--for=jsonpath={.metadata.annotations.proxy-url}=https://x"
    assert kubectl("-n", "xprofiler", "wait", "service/viewer", wait, "--timeout=30s").code == 0


@needs_kubectl
def test_an_unsupported_form_of_kubectl_is_refused_with_a_remedy(kubectl: Kubectl) -> None:
    assert "kubectl apply -f" in kubectl("create", "configmap", "c", "--from-literal=a=b").errors


# --- Faults ---------------------------------------------------------------------------------------------


@needs_kubectl
def test_a_user_without_the_role_is_refused_with_the_name_of_the_permission(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, tmp_path: Path
) -> None:
    kubernetes_server.denied = {"list services", "create deployments"}
    assert 'User "tester" cannot list resource "services" in API group ""' in kubectl("get", "services").errors
    done = kubectl("apply", "-f", manifest(tmp_path, VIEWER))
    assert done.code == 1
    assert 'cannot create resource "deployments" in API group "apps" in the namespace "xprofiler"' in done.errors
    assert names(kubernetes_server, "services") == ["viewer"]


@needs_kubectl
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Status(401), "You must be logged in to the server"),
        (Status(403), "(Forbidden)"),
        (Status(409), "(Conflict)"),
        (Status(500), "(InternalError)"),
        (Status(503), "(ServiceUnavailable)"),
        (Truncate(5), "unexpected EOF"),
    ],
)
def test_a_fault_reaches_kubectl(
    kubectl: Kubectl, kubernetes_server: KubernetesServer, fault: Any, message: str
) -> None:
    kubernetes_server.faults.always(fault, on="list")
    done = kubectl("get", "services")
    assert done.code == 1
    assert message in done.errors


@needs_kubectl
def test_kubectl_retries_after_the_requested_delay(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.add_pod("worker-0")
    kubernetes_server.faults.script([Status(429, retry_after=1)], on="list")
    assert kubectl("get", "pods", "-o", "name").text == "pod/worker-0\n"
    assert [request.status for request in kubernetes_server.requests_for("list")] == [429, 200]


# --- The languages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("a=1,b=2", {"a": "1", "b": "2"}, True),
        ("a=1,b=2", {"a": "1"}, False),
        ("a==1", {"a": "1"}, True),
        ("a!=1", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("a in (1, 2),b notin (3)", {"a": "2"}, True),
        ("a notin (1)", {"a": "1"}, False),
        ("role=x,zone in (us-a,us-b)", {"role": "x", "zone": "us-b"}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert labels_match(selector, labels) is matches


@pytest.mark.parametrize(
    ("selector", "matches"),
    [("metadata.name=a", True), ("metadata.name!=a", False), ("metadata.name==b", False), ("status.phase=", True)],
)
def test_field_selectors(selector: str, matches: bool) -> None:
    assert fields_match(selector, {"metadata": {"name": "a"}}) is matches


@pytest.mark.parametrize("selector", ["a b", "a,", "(a)", "a in", "a in (1", "a in 1", "=1", "!"])
def test_an_invalid_selector_is_rejected(selector: str) -> None:
    with pytest.raises(ApiError, match="Unparseable"):
        labels_match(selector, {})


@given(st.text(max_size=30))
def test_any_selector_is_understood_or_refused(text: str) -> None:
    for matches in (labels_match, fields_match):
        with refused_at_most_with(400):
            assert matches(text, {}) in (True, False)


@pytest.mark.parametrize(
    ("content_type", "patch", "result"),
    [
        ("application/merge-patch+json", {"a": None, "b": {"c": 2}}, {"b": {"c": 2, "d": [{"name": "x", "v": 1}]}}),
        ("application/strategic-merge-patch+json", {"b": {"d": ["y"]}}, {"a": 1, "b": {"c": 1, "d": ["y"]}}),
        ("application/strategic-merge-patch+json", {"b": {"$patch": "replace"}}, {"a": 1, "b": {}}),
        ("application/strategic-merge-patch+json", {"b": {"$retainKeys": ["e"], "e": 1}}, {"a": 1, "b": {"e": 1}}),
        ("application/json-patch+json", [{"op": "remove", "path": "/b"}], {"a": 1}),
        ("application/json-patch+json", [{"op": "replace", "path": "/b/d/0/v", "value": 7}], None),
    ],
)
def test_patches(content_type: str, patch: Any, result: Any) -> None:
    before = {"a": 1, "b": {"c": 1, "d": [{"name": "x", "v": 1}]}}
    after = patched(before, patch, content_type)
    assert after == (result or {"a": 1, "b": {"c": 1, "d": [{"name": "x", "v": 7}]}})
    assert before == {"a": 1, "b": {"c": 1, "d": [{"name": "x", "v": 1}]}}


def test_lists_of_named_items_are_merged_by_name() -> None:
    before = {"containers": [{"name": "a", "image": "1", "ports": [{"containerPort": 1}]}, {"name": "b"}]}
    patch = {
        "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}],
        "containers": [{"name": "a", "image": "2"}, {"name": "b", "$patch": "delete"}, {"name": "c"}],
    }
    after = patched(before, patch, "application/strategic-merge-patch+json")
    assert after == {"containers": [{"name": "a", "image": "2", "ports": [{"containerPort": 1}]}, {"name": "c"}]}


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_patch_is_applied_or_refused(patch: Any) -> None:
    forms = ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml", "nonsense")
    for form in forms:
        with refused_at_most_with(415, 422):
            assert isinstance(patched({"metadata": {"name": "a"}}, patch, f"application/{form}"), dict)


@needs_kubectl
def test_a_name_cannot_be_changed(kubectl: Kubectl, kubernetes_server: KubernetesServer) -> None:
    kubernetes_server.put("services", {"metadata": {"name": "viewer"}})
    for patch in ('{"metadata": null}', '{"metadata": {"name": "other"}}'):
        assert "immutable" in kubectl("patch", "service", "viewer", "--type=merge", "-p", patch).errors
    assert names(kubernetes_server, "services") == ["viewer"]
