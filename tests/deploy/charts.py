"""The charts, rendered as Helm renders them, and the manifests that are rendered from them.

    python -m tests.deploy.charts

writes deploy/manifests and the kind of objects that the operator's chart has; `nox -s charts` runs it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from google_cloud_mldiagnostics._kubernetes.connections.resource import custom_resource_definition
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE

__all__ = [
    "CHARTS",
    "CRD",
    "MANIFESTS",
    "NAMES",
    "OPERATOR",
    "WEBHOOK",
    "NoRendererError",
    "RenderError",
    "crd_text",
    "digest",
    "documents",
    "manifest",
    "manifest_text",
    "render",
]

_ROOT: Final = Path(__file__).parents[2]
CHARTS: Final = _ROOT / "deploy" / "charts"
MANIFESTS: Final = _ROOT / "deploy" / "manifests"
WEBHOOK: Final = "mldiagnostics-injection-webhook"
OPERATOR: Final = "mldiagnostics-connection-operator"
NAMES: Final = (WEBHOOK, OPERATOR)
CRD: Final = "mldiagnosticsconnections.yaml"
GO_PACKAGES: Final = ("golang-1.19-go", "golang-github-masterminds-sprig-dev", "golang-k8s-sigs-yaml-dev")
_SOURCE: Final = Path(__file__).parent / "renderer" / "main.go"
_GO: Final = "/usr/lib/go-1.19/bin/go"
_LIBRARIES: Final = Path("/usr/share/gocode")


class NoRendererError(Exception):
    """The renderer cannot be built here; the message says what is missing."""


class RenderError(Exception):
    """A chart refuses its values; the message is that of the template."""


def render(
    name: str, values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE, has_notes: bool = False
) -> str:
    """Return the manifest of a chart.

    Args:
        name: The chart.
        values: Values that differ from the defaults.
        namespace: The namespace of the release.
        has_notes: If True, return the notes for the user instead.

    Raises:
        NoRendererError: Go or one of its libraries is not installed.
        RenderError: The chart refuses the values.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(dict(values or {}), file)
        file.flush()
        notes = ["-notes"] if has_notes else []
        command = [str(_renderer()), *notes, str(CHARTS / name), namespace, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(done.stderr.strip())
    return done.stdout


def _renderer() -> Path:
    """Return the renderer, which is built if this version of it is not."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    program = _ROOT / "build" / f"chart-renderer-{version}"
    if program.exists():
        return program
    go = _GO if Path(_GO).exists() else shutil.which("go")
    needed = [_LIBRARIES / "src" / library for library in ("github.com/Masterminds/sprig", "sigs.k8s.io/yaml")]
    if go is None or not all(path.exists() for path in needed):
        raise NoRendererError(f"charts cannot be rendered: apt-get install {' '.join(GO_PACKAGES)}")
    program.parent.mkdir(exist_ok=True)
    part = program.with_name(f"{program.name}.{os.getpid()}")  # Other workers may build it, too.
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": str(_LIBRARIES), "GOFLAGS": "", "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-o", str(part), str(_SOURCE)], check=True, env=environment)
    part.rename(program)
    return program


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return [document for document in yaml.safe_load_all(text) if document]


def manifest(name: str) -> Path:
    """Return the committed manifest of a chart."""
    return MANIFESTS / name / f"{name}.yaml"


def manifest_text(name: str, rendered: str) -> str:
    """Return the contents of the manifest of a chart, with a digest by which it proves to be up to date."""
    return (
        f"# deploy/charts/{name} with its default values, by `nox -s charts`.\n"
        f"# Digest of both: {digest(name, rendered)}\n{rendered}"
    )


def digest(name: str, rendered: str) -> str:
    """Return a digest of a chart's files and of the manifest."""
    found = hashlib.sha256(rendered.encode())
    for path in sorted((CHARTS / name).rglob("*")):
        if path.is_file():
            found.update(f"\0{path.relative_to(CHARTS)}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def crd_text() -> str:
    """Return the file of the kind of objects that the operator works on."""
    text = yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120)
    return f"# From google_cloud_mldiagnostics, by `nox -s charts`.\n{text}"


def main() -> None:
    """Write the manifests."""
    for path in (CHARTS / OPERATOR / "crds" / CRD, MANIFESTS / OPERATOR / CRD):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(crd_text())
    for name in NAMES:
        manifest(name).parent.mkdir(parents=True, exist_ok=True)
        manifest(name).write_text(manifest_text(name, render(name)))


if __name__ == "__main__":
    main()
