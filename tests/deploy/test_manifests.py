"""The committed manifests: up to date with the charts, and the base of overlays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
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
def test_an_overlay_changes_image_cluster_and_replicas(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(MANIFESTS / WEBHOOK, base)
    argument = "--cluster=projects/p/locations/l/clusters/c"
    change = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": argument}]
    overlay = {
        "resources": ["../base"],
        "images": [{"name": "ghcr.io/ml-diagnostics/mldiagnostics", "newName": "example.com/ours", "newTag": "1"}],
        "replicas": [{"name": WEBHOOK, "count": 3}],
        "patches": [{"target": {"kind": "Deployment"}, "patch": yaml.safe_dump(change)}],
    }
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    found = kustomize(tmp_path / "overlay")
    spec = of_kind(found, "Deployment")["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert (spec["replicas"], container["image"], container["args"][-1]) == (3, "example.com/ours:1", argument)
