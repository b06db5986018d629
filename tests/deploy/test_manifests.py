"""The committed manifests: up to date with the charts, and the base of overlays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.rights import OPERATOR_RIGHTS, STAND_DOWN_RIGHTS, WEBHOOK_RIGHTS, Right
from google_cloud_mldiagnostics._kubernetes.webhook.configuration import webhook_configuration

from .charts import CHARTS, CRD, MANIFESTS, NAMES, OPERATOR, WEBHOOK, crd_text, documents, manifest, manifest_text

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def kustomize(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return documents(done.stdout)


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = (each for each in found if each["kind"] == kind)
    return document


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_up_to_date_with_its_chart(name: str) -> None:
    text = manifest(name).read_text()
    rendered = text.split("\n", 2)[2]
    assert text == manifest_text(name, rendered), "chart or manifest have changed: run `nox -s charts`"


@pytest.mark.parametrize("path", [CHARTS / OPERATOR / "crds" / CRD, MANIFESTS / OPERATOR / CRD])
def test_the_kind_of_connections_is_the_one_that_the_operator_reads(path: Path) -> None:
    assert path.read_text() == crd_text(), "run `nox -s charts`"


def test_the_webhook_is_asked_for_the_pods_that_the_package_says() -> None:
    found = of_kind(documents(manifest(WEBHOOK).read_text()), "MutatingWebhookConfiguration")
    expected = webhook_configuration()
    assert found["webhooks"] == expected["webhooks"]
    assert found["metadata"]["name"] == expected["metadata"]["name"]


def rights_of(name: str) -> set[Right]:
    """Return the rights of the account of a chart."""
    found = documents(manifest(name).read_text())
    roles = [each for each in found if "Role" in each["kind"] and each["metadata"]["name"].startswith(name)]
    return {
        Right(group, resource, verb, role["metadata"].get("namespace", ""))
        for role in roles
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_each_account_has_the_rights_that_the_package_says_and_no_others() -> None:
    assert rights_of(WEBHOOK) == {*WEBHOOK_RIGHTS, *STAND_DOWN_RIGHTS}
    assert rights_of(OPERATOR) == {*OPERATOR_RIGHTS}


@needs_kubectl
@pytest.mark.parametrize("name", NAMES)
def test_kustomize_renders_all_objects_of_a_folder(name: str) -> None:
    written = [
        document for path in (MANIFESTS / name).glob("mldiagnostics*.yaml") for document in documents(path.read_text())
    ]

    def names(some: list[dict[str, Any]]) -> list[tuple[str, str]]:
        return sorted((document["kind"], document["metadata"]["name"]) for document in some)

    assert names(kustomize(MANIFESTS / name)) == names(written)


@needs_kubectl
def test_the_overlay_of_the_documentation_changes_image_cluster_and_replicas(tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS / WEBHOOK, tmp_path / WEBHOOK)
    documented = (MANIFESTS.parent / "README.md").read_text()
    (tmp_path / "kustomization.yaml").write_text(documented.partition("# kustomization.yaml\n")[2].partition("```")[0])
    spec = of_kind(kustomize(tmp_path), "Deployment")["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert (spec["replicas"], container["image"]) == (3, "REGISTRY/mldiagnostics:1.2.0")
    assert container["args"][-1] == "--cluster=projects/PROJECT/locations/LOCATION/clusters/CLUSTER"
