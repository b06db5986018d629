"""The guide for GKE: each command of it runs, in order, and prints what the page shows.

A line of output that the page shows must be in the real output, where numbers and ids may differ.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from google_cloud_mldiagnostics._kubernetes.names import WEBHOOK_CERTIFICATE, WEBHOOK_CONFIGURATION

from ...deploy.charts import MANIFESTS, NAMES, documents
from ...kube_api import KubeApi, UnavailableError, shared_server
from ...waiting import wait_until
from .clusters import CONFIGURATIONS, CUSTOM_KINDS, Webhook, add_kind, create
from .test_end_to_end import capture_folder, is_recorded, make_running, operator, trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a process the host name of its pod"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "gke.md"
_NAMESPACE = "ai-workloads"
_PODS = ("train-workers-0-0-b4c9d",)
_BUCKET = "gs://my-bucket"
_RUN = re.compile(r"llama-c-[\w-]+-[0-9a-f]{8}\b")
"""The name of the run, which has its time and a part of the JobSet's id."""
_NOT_STARTED = ("Deployment", "PodDisruptionBudget", "Certificate", "Issuer")
"""No kubelet starts the pods of this cluster: both servers are processes, and their certificate is a test's."""
_CHANGING = re.compile(
    r"""\d{4}-\d\d-\d\dT[\d:]+Z?              # a time
    |[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} # the id of an object
    |-[0-9a-f]{8}\b                            # the start of one
    |--+                                       # as long as the longest value of a column
    |[+-]?\d[\d.,:]*                          # a number""",
    re.VERBOSE,
)


class Command(NamedTuple):
    """A command of the page, and the lines of its output that the page shows."""

    line: str
    shown: list[str]


def commands() -> Iterator[Command]:
    """Yield the commands in the `console` blocks of the page."""
    for block in re.findall(r"```console\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            while line.endswith("\\"):
                more, _, output = output.partition("\n")
                line = line[:-1] + more.lstrip()
            yield Command(line, output.splitlines())


def comparable(text: str) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    return [" ".join(_CHANGING.sub("#", line).split()) for line in text.splitlines()]


class Reader:
    """A reader of the page: types its commands.

    Args:
        server: The cluster.
        folder: The current folder; the bucket of the page is a folder in it.

    Attributes:
        bucket: That folder.
        run_name: The name of the run, which differs from that of the page.
    """

    def __init__(self, server: KubeApi, folder: Path) -> None:
        self.folder = folder
        self.run_name = ""
        self.bucket = folder / "bucket"
        programs = folder / "programs"
        programs.mkdir()
        start = f'#!/bin/sh\nexec {sys.executable} -m google_cloud_mldiagnostics "$@"\n'
        (programs / "mldiagnostics").write_text(start)
        (programs / "mldiagnostics").chmod(0o700)
        self._environ = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(server.kubeconfig),
            "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"),
        }

    def save(self, name: str, text: str) -> None:
        """Save a file of the page."""
        (self.folder / name).write_text(self._here(text))

    def run(self, command: Command) -> None:
        """Run a command, and compare what it prints."""
        done = subprocess.run(
            ["bash", "-c", self._here(command.line)],
            capture_output=True,
            text=True,
            timeout=120,
            env=self._environ,
            cwd=self.folder,
        )
        printed = done.stdout.replace(str(self.bucket), _BUCKET)
        known = comparable(printed)
        missing = [shown for shown in command.shown if shown.strip() and comparable(shown)[0] not in known]
        assert not missing, f"$ {command.line}\n{printed}{done.stderr}\nThe page shows:\n" + "\n".join(missing)

    def _here(self, text: str) -> str:
        return _RUN.sub(self.run_name, text).replace(_BUCKET, str(self.bucket))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubeApi]:
    """Start a cluster with both manifests, the kinds of workloads, and nothing else."""
    try:
        with shared_server(tmp_path / "kube-api") as server:
            for kind in CUSTOM_KINDS:
                add_kind(server, *kind)
            server.apply("/api/v1/namespaces", {"metadata": {"name": "gke-mldiagnostics"}})
            command = ["kubectl", f"--kubeconfig={server.kubeconfig}", "apply", "--validate=false", "-f", "-"]
            subprocess.run(command, input=yaml.safe_dump_all(installed()), text=True, check=True, timeout=60)
            server.wait_until_served("/apis/diagon.gke.io/v1alpha1/mldiagnosticsconnections")
            yield server
    except UnavailableError as error:
        pytest.skip(f"no Kubernetes API server: {error}")


def installed() -> list[dict[str, object]]:
    """Return the objects of both manifests that need no kubelet."""
    files = [file for name in NAMES for file in sorted((MANIFESTS / name).glob("mldiagnostics*.yaml"))]
    found = [document for file in files for document in documents(file.read_text())]
    return [document for document in found if document["kind"] not in _NOT_STARTED]


def have_asked(server: KubeApi, webhook: Webhook) -> None:
    """Have the API server ask a process, where the manifest names a Service, and keep its certificate as usual."""
    certificate = base64.b64encode(webhook.certificate.read_bytes()).decode()
    secret = {"metadata": {"name": WEBHOOK_CERTIFICATE}, "data": {"tls.crt": certificate}}
    server.apply("/api/v1/namespaces/gke-mldiagnostics/secrets", secret)
    path = f"{CONFIGURATIONS}/{WEBHOOK_CONFIGURATION}"
    configuration = server.call("GET", path)
    for entry in configuration["webhooks"]:
        entry["clientConfig"] = webhook.client_config()
    server.call("PUT", path, configuration)


def test_each_command_of_the_page_prints_what_the_page_shows(cluster: KubeApi, tmp_path: Path) -> None:
    reader = Reader(cluster, tmp_path)
    lines = commands()
    with Webhook(cluster, tmp_path) as webhook, operator(cluster, _NAMESPACE, lease_namespace="gke-mldiagnostics"):
        have_asked(cluster, webhook)
        for command in lines:
            reader.run(command)
            if "example jobset" in command.line:
                break
        webhook.wait_until_asked(_NAMESPACE)
        jobset = cluster.call("GET", f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{_NAMESPACE}/jobsets/train")
        job = create(cluster, _NAMESPACE, "Job", "train-workers-0", jobset)
        for name in _PODS:
            create(cluster, _NAMESPACE, "Pod", name, job)
        pod = make_running(cluster, _NAMESPACE, _PODS[0])
        with trainer(pod, reader.bucket / "runs", tmp_path / "diagnostics") as run:
            wait_until(lambda: capture_folder(run, tmp_path / "diagnostics"))
            reader.run_name = run
            (document,) = re.findall(r"```yaml\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
            reader.save("profile.yaml", document)
            for command in lines:
                if command.line.startswith("mldiagnostics show"):
                    wait_until(lambda: is_recorded(run, tmp_path / "diagnostics"))
                reader.run(command)


def test_each_message_of_the_table_is_one_of_the_operator() -> None:
    sources = Path(__file__).parents[3] / "packages"
    text = "".join(
        re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8"))
        for folder in ("google_cloud_mldiagnostics", "common")
        for path in (sources / folder / "src").rglob("*.py")
    )
    section = _PAGE.read_text(encoding="utf-8").partition("## Messages of the operator")[2].partition("\n## ")[0]
    messages = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    assert len(messages) >= 10
    missing = [
        message for message in messages if not all(part in text for part in re.split(r"\b[A-Z]+\b|\.\.\.", message))
    ]
    assert not missing
