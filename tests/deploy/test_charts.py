"""The charts: what their templates may use, which values they take, and what these change."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml
from google_cloud_mldiagnostics._cli.kubernetes import KubernetesCommand
from google_cloud_mldiagnostics._kubernetes.names import LOOKED_UP, WEBHOOK_CERTIFICATE, WEBHOOK_CONFIGURATION
from google_cloud_mldiagnostics._kubernetes.rights import FACT_RIGHTS, Right
from google_cloud_mldiagnostics._kubernetes.webhook.configuration import webhook_configuration
from google_cloud_mldiagnostics._version import get_version

from .charts import (
    CHARTS,
    NAMES,
    OPERATOR,
    WEBHOOK,
    NoRendererError,
    RenderError,
    documents,
    manifest,
    manifest_text,
    render,
)

# Each version of Helm has them, and none reads the cluster, a clock or random numbers.
_WORDS = {"include", "define", "toYaml", "default", "quote", "nindent", "printf", "required"}
_WORDS |= {"if", "else", "end", "with", "range", "eq", "and", "or", "not"}
_EXISTING = {"mode": "existingSecret", "secretName": "ours", "caBundle": "QUJD"}
SOME_VALUES: list[tuple[str, dict[str, Any]]] = [
    (WEBHOOK, {"certificates": {"mode": "selfSigned"}, "standDown": "never", "workloadLabels": False}),
    (WEBHOOK, {"certificates": _EXISTING, "replicas": 1, "podDisruptionBudget": {"enabled": False}}),
    (WEBHOOK, {"cluster": "projects/p/locations/l/clusters/c", "networkPolicy": {"enabled": False}}),
    (WEBHOOK, {"exemptNamespaces": [], "tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}}),
    (WEBHOOK, {"image": {"repository": "r", "tag": "t", "pullSecrets": ["s"]}, "ports": {"webhook": 9443}}),
    (OPERATOR, {"namespaces": ["one", "two"], "localStorage": True, "hostNetwork": True, "ports": {"allowed": [80]}}),
    (OPERATOR, {"recordFacts": True}),
    (OPERATOR, {"recordFacts": True, "namespaces": ["one"]}),
    (OPERATOR, {"ttlSeconds": 31_536_000, "concurrency": 2, "networkPolicy": {"enabled": False}, "replicas": 2}),
    (OPERATOR, {"serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "a@p.iam"}}}),
    (OPERATOR, {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}, "image": {"pullSecrets": ["s"]}}),
]


def rendered(
    name: str, values: Mapping[str, Any] | None = None, namespace: str = "gke-mldiagnostics"
) -> list[dict[str, Any]]:
    """Return the objects of a chart; skip the test where no chart can be rendered."""
    return documents(text_of(name, values, namespace))


def text_of(
    name: str, values: Mapping[str, Any] | None = None, namespace: str = "gke-mldiagnostics", *, has_notes: bool = False
) -> str:
    try:
        return render(name, values, namespace=namespace, has_notes=has_notes)
    except NoRendererError as error:
        pytest.skip(str(error))


def one(found: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (document,) = (each for each in found if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return document


def arguments(found: list[dict[str, Any]]) -> list[str]:
    return list(one(found, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"])


def schema(name: str) -> dict[str, Any]:
    return dict(json.loads((CHARTS / name / "values.schema.json").read_text()))


# --- Without the renderer ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_templates_use_few_words_and_none_that_reads_the_cluster(name: str) -> None:
    for path in (CHARTS / name / "templates").iterdir():
        text = path.read_text()
        for action in re.findall(r"{{-?\s*(.*?)\s*-?}}", text, re.DOTALL):
            without_texts = re.sub(r'"[^"]*"', "", action)
            words = set(re.findall(r"(?<![.$\w])[A-Za-z_]\w*", without_texts))
            assert words <= _WORDS, f"{path.name}: {action}"
        assert "helm.sh/hook" not in text, path.name


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_describes_each_value_and_refuses_others(name: str) -> None:
    def check(values: dict[str, Any], of: dict[str, Any], path: str) -> None:
        if "properties" not in of:  # Kubernetes itself checks these.
            return
        assert of["additionalProperties"] is False, path
        assert set(of["properties"]) - {"global"} == set(values), path
        for key, value in values.items():
            if isinstance(value, dict):
                check(value, of["properties"][key], f"{path}.{key}")

    values = yaml.safe_load((CHARTS / name / "values.yaml").read_text())
    check(values, schema(name), name)
    jsonschema.validate(values, schema(name))
    with pytest.raises(jsonschema.ValidationError, match="typo"):
        jsonschema.validate({"typo": 1}, schema(name))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (WEBHOOK, {"cluster": "my-cluster"}),
        (WEBHOOK, {"certificates": {"mode": "genCA"}}),
        (WEBHOOK, {"failurePolicy": "Fail"}),
        (WEBHOOK, {"ports": {"webhook": 443}}),
        (WEBHOOK, {"replicas": 0}),
        (OPERATOR, {"namespaces": "one"}),
        (OPERATOR, {"ttlSeconds": -1}),
        (OPERATOR, {"concurrency": 0}),
    ],
)
def test_the_schema_refuses_a_bad_value(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_image_has_the_version_of_the_package(name: str) -> None:
    chart = yaml.safe_load((CHARTS / name / "Chart.yaml").read_text())
    assert chart["name"] == name
    assert chart["appVersion"] == get_version().partition("+")[0]


@pytest.mark.parametrize("name", NAMES)
def test_containers_have_no_rights_on_their_node(name: str) -> None:
    pod = one(documents(manifest(name).read_text()), "Deployment")["spec"]["template"]["spec"]
    context = pod["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, 65532, 65532)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_the_webhook_may_get_the_owners_of_pods_and_nothing_else() -> None:
    (*rules, stand_down) = one(documents(manifest(WEBHOOK).read_text()), "ClusterRole")["rules"]
    assert all(rule["verbs"] == ["get"] for rule in rules)
    allowed = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    assert allowed == {("", "namespaces"), *((group, resource) for (group, _), resource in LOOKED_UP.items())}
    assert stand_down["verbs"] == ["list"]
    assert set(stand_down["resources"]) == {"mutatingwebhookconfigurations", "mutatingadmissionpolicies"}


def test_no_role_has_a_wildcard_or_reads_secrets_of_others() -> None:
    for name in NAMES:
        for document in documents(manifest(name).read_text()):
            for rule in document.get("rules", ()) if "Role" in document["kind"] else ():
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], rule
                assert not {"secrets", "configmaps", "pods/exec", "pods/proxy"} & set(rule["resources"]), rule


def test_who_may_edit_a_namespace_may_capture_its_pods_and_viewers_may_not() -> None:
    role = one(documents(manifest(OPERATOR).read_text()), "ClusterRole", "connection-editor")
    aggregated = [label for label in role["metadata"]["labels"] if "aggregate" in label]
    assert aggregated == ["rbac.authorization.k8s.io/aggregate-to-edit"]


# --- Rendered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_manifest_is_what_the_chart_renders(name: str) -> None:
    assert manifest(name).read_text() == manifest_text(name, text_of(name))


@pytest.mark.parametrize(("name", "values"), SOME_VALUES)
def test_each_value_that_the_schema_allows_renders(name: str, values: dict[str, Any]) -> None:
    jsonschema.validate(values, schema(name))
    found = rendered(name, values, "elsewhere")
    assert found != rendered(name, {}, "elsewhere")
    for document in found:
        assert document["metadata"].get("namespace") in (None, "elsewhere", "one", "two")
        for subject in document.get("subjects", ()):
            assert subject["namespace"] == "elsewhere"


@pytest.mark.parametrize(("name", "values"), SOME_VALUES)
def test_the_command_takes_the_arguments_of_the_chart(name: str, values: dict[str, Any]) -> None:
    container = one(rendered(name, values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    parser = argparse.ArgumentParser()
    KubernetesCommand().prepare_parser(parser)
    assert container["command"][:2] == ["mldiagnostics", "kubernetes"]
    parser.parse_args([*container["command"][2:], *container["args"]])


@pytest.mark.parametrize("has_workload_entries", [True, False])
def test_the_entries_are_those_of_the_package_for_any_values(*, has_workload_entries: bool) -> None:
    values = {"workloadLabels": has_workload_entries, "exemptNamespaces": ["a", "b"], "certificates": _EXISTING}
    found = one(rendered(WEBHOOK, values, "elsewhere"), "MutatingWebhookConfiguration")
    expected = webhook_configuration(
        namespace="elsewhere",
        ca_bundle="QUJD",
        exempt_namespaces=["a", "b"],
        has_workload_entries=has_workload_entries,
    )
    assert found["webhooks"] == expected["webhooks"]


def test_a_webhook_that_signs_its_certificate_may_change_two_objects_by_name() -> None:
    found = rendered(WEBHOOK, {"certificates": {"mode": "selfSigned"}})
    assert "--self-signed" in arguments(found)
    assert "data" not in one(found, "Secret")
    assert one(found, "Secret")["metadata"]["name"] == WEBHOOK_CERTIFICATE
    (secrets,) = one(found, "Role")["rules"]
    assert (secrets["resourceNames"], secrets["verbs"]) == ([WEBHOOK_CERTIFICATE], ["get", "patch"])
    configuration = one(found, "ClusterRole")["rules"][-1]
    assert (configuration["resourceNames"], configuration["verbs"]) == ([WEBHOOK_CONFIGURATION], ["get", "patch"])
    assert not {"Certificate", "Issuer"} & {document["kind"] for document in found}


def test_an_existing_secret_needs_its_name_and_who_is_trusted() -> None:
    for key in ("secretName", "caBundle"):
        text_of(WEBHOOK, {"certificates": _EXISTING})
        with pytest.raises(RenderError, match=f"certificates.{key} is empty"):
            render(WEBHOOK, {"certificates": {**_EXISTING, key: ""}})


def test_with_a_list_of_namespaces_the_operator_has_roles_in_these_alone() -> None:
    everywhere = one(rendered(OPERATOR), "ClusterRole", "operator")["rules"]
    found = rendered(OPERATOR, {"namespaces": ["one", "two"]})
    roles = [each for each in found if each["kind"] == "Role" and each["metadata"]["name"] == OPERATOR]
    assert [role["metadata"]["namespace"] for role in roles] == ["one", "two"]
    assert all(role["rules"] == everywhere for role in roles)
    assert not any(document["kind"] == "ClusterRoleBinding" for document in found)
    assert [each for each in arguments(found) if "namespace=" in each][1:] == ["--namespace=one", "--namespace=two"]


def test_large_numbers_are_written_out() -> None:
    assert "--ttl-seconds=31536000" in arguments(rendered(OPERATOR, {"ttlSeconds": 31_536_000}))


@pytest.mark.parametrize("name", NAMES)
def test_the_notes_name_the_next_commands(name: str) -> None:
    notes = text_of(name, namespace="elsewhere", has_notes=True)
    assert "mldiagnostics kubernetes check" in notes
    assert f"helm uninstall {name} --namespace elsewhere" in notes


@pytest.mark.parametrize("namespaces", [[], ["one"]])
def test_only_an_operator_that_records_facts_may_list_pods_and_events(namespaces: list[str]) -> None:
    def rights(*, records: bool) -> set[Right]:
        found = rendered(OPERATOR, {"recordFacts": records, "namespaces": namespaces})
        roles = [one(found, "Role" if namespaces else "ClusterRole", OPERATOR)]
        return {
            Right(group, resource, verb)
            for role in roles
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert rights(records=True) - rights(records=False) == {*FACT_RIGHTS}
    assert not rights(records=False) & {*FACT_RIGHTS}
    assert "--record-facts" in arguments(rendered(OPERATOR, {"recordFacts": True}))
    assert "--record-facts" not in arguments(rendered(OPERATOR))
