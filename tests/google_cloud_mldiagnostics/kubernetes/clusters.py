"""Contents of a cluster: kinds of workloads, rights, objects with owners; and the webhook as a process."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from google_cloud_mldiagnostics._kubernetes.webhook.configuration import webhook_configuration
from ml_diagnostics_testing.certificates import CertificateAuthority

from ...deploy.charts import WEBHOOK, documents, manifest
from ...kube_api import KubeApi
from ...waiting import free_port, wait_until

CUSTOM_KINDS = [
    ("kueue.x-k8s.io", "v1beta1", "Workload", "workloads"),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
    ("ray.io", "v1", "RayCluster", "rayclusters"),
    ("ray.io", "v1", "RayJob", "rayjobs"),
    ("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
]
_BUILT_IN = {"Job": ("batch", "v1", "jobs"), "Pod": ("", "v1", "pods"), "StatefulSet": ("apps", "v1", "statefulsets")}
_CUSTOM = {kind: (group, version, resource) for group, version, kind, resource in CUSTOM_KINDS}

CONTAINER = {"name": "main", "image": "busybox"}
_TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [CONTAINER], "restartPolicy": "Never"}}
_SPECS: dict[str, dict[str, Any]] = {
    "Job": {"template": _TEMPLATE},
    "Pod": {"containers": [CONTAINER]},
    "StatefulSet": {
        "selector": {"matchLabels": {"app": "x"}},
        "serviceName": "x",
        "template": {**_TEMPLATE, "spec": {"containers": [CONTAINER]}},
    },
}


def add_kind(server: KubeApi, group: str, version: str, kind: str, resource: str) -> None:
    """Add a kind of objects with any fields, and wait until it is served."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": kind, "plural": resource, "singular": kind.lower(), "listKind": f"{kind}List"}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": names,
        "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
    }
    server.apply(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{resource}.{group}"},
            "spec": spec,
        },
    )
    server.wait_until_served(f"/apis/{group}/{version}/{resource}")


def allow_webhook(server: KubeApi) -> None:
    """Give the webhook's account the rights of its manifest, and no others."""
    for document in documents(manifest(WEBHOOK).read_text()):
        if document["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            server.apply(f"/apis/rbac.authorization.k8s.io/v1/{document['kind'].lower()}s", document)


def create(
    server: KubeApi, namespace: str, kind: str, name: str, owner: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Create an object, with a controller if one is given, and return it.

    Args:
        server: The API server.
        namespace: The namespace.
        kind: The kind.
        name: The name.
        owner: The controller, as `create` returned it.
        **more: `labels`, `spec`, or the `uid` in the reference to the owner.
    """
    group, version, resource = (_BUILT_IN | _CUSTOM)[kind]
    metadata: dict[str, Any] = {"name": name, "labels": more.get("labels", {})}
    if owner is not None:
        uid = more.get("uid", owner["metadata"]["uid"])
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
        metadata["ownerReferences"] = [{**reference, "uid": uid, "controller": True}]
    version_name = f"{group}/{version}" if group else version
    root = f"/apis/{version_name}" if group else f"/api/{version}"
    document = {"apiVersion": version_name, "kind": kind, "metadata": metadata}
    document["spec"] = more.get("spec", _SPECS.get(kind, {}))
    return server.call("POST", f"{root}/namespaces/{namespace}/{resource}", document)


def variables(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    """Return the variables of a pod's container, by name."""
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][container].get("env", ())}


_PROGRAM = """
import json, logging, ssl, sys
from pathlib import Path
from google_cloud_mldiagnostics._kubernetes.api import Connection
from google_cloud_mldiagnostics._kubernetes.webhook import injection, server
from google_cloud_mldiagnostics._kubernetes.webhook.server import WebhookSettings, serve
injection._LOOKUPS_SECONDS = server._LOOKUP_SECONDS = 25.0  # The API server of a busy machine may take seconds.
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
url, authority, token, settings = sys.argv[1:]
settings = json.loads(settings)
paths = {key: Path(settings[key]) for key in ("certificate", "key") if key in settings}
connection = Connection(url, ssl.create_default_context(cafile=authority), Path(token))
serve(WebhookSettings(**{**settings, **paths}), connection)
"""


def register(server: KubeApi, namespace: str, port: int, bundle: bytes = b"", *, timeout_seconds: int = 30) -> str:
    """Have the API server ask a port of this machine for the pods of one namespace; return the configuration's name.

    Args:
        server: The API server.
        namespace: The namespace; those of other tests are not concerned.
        port: The port of the webhook.
        bundle: The certificates that the API server trusts.
        timeout_seconds: When it goes on without an answer.
    """
    document = webhook_configuration(ca_bundle=base64.b64encode(bundle).decode())
    document["metadata"]["name"] = name = f"webhook-{namespace}"
    for entry in document["webhooks"]:
        client = {key: value for key, value in entry["clientConfig"].items() if key != "service"}
        entry["clientConfig"] = {**client, "url": f"https://localhost:{port}/mutate"}
        entry["timeoutSeconds"] = timeout_seconds
        of_namespace = {"key": "test", "operator": "In", "values": [namespace]}
        entry["namespaceSelector"]["matchExpressions"].append(of_namespace)
    server.apply(CONFIGURATIONS, document)
    return name


class Webhook:
    """The webhook's server as a process, with a certificate of an authority of its own.

    Args:
        server: The API server.
        folder: A folder for its certificate and its log.
        account: Its service account.
        is_valid: If False it is not ready, since its certificate is not valid.
        **settings: Settings of `WebhookSettings`. With a `configuration` it signs its certificate itself.
    """

    def __init__(
        self, server: KubeApi, folder: Path, account: str = "webhook", *, is_valid: bool = True, **settings: Any
    ) -> None:
        self.server = server
        self.authority = CertificateAuthority(folder)
        self.certificate, self.key = self.authority.issue("webhook")
        self.port, self.metrics_port = free_port(), free_port()
        files = {} if "configuration" in settings else {"certificate": str(self.certificate), "key": str(self.key)}
        ports = {"port": self.port, "metrics_port": self.metrics_port}
        self._settings = {**_SETTINGS, **files, **ports, **settings}
        self._log = folder / f"webhook-{self.port}.log"
        self._account = account
        self._is_valid = is_valid
        self._namespaces: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and wait for nothing."""
        files = [self.server.authority, self.server.token_file(self._account)]
        command = [sys.executable, "-c", _PROGRAM, self.server.url, *map(str, files), json.dumps(self._settings)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Webhook:
        self.start()
        wait_until(self.is_ready if self._is_valid else self.is_alive, running=self.process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for namespace in [*self._namespaces]:
            self.unregister(namespace)
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """The log of the server."""
        return self._log.read_text()

    def is_ready(self) -> bool:
        """Return True once the server reports that it is ready."""
        return self._is_ok("/readyz")

    def is_alive(self) -> bool:
        """Return True once the server answers."""
        return self._is_ok("/healthz")

    def _is_ok(self, path: str) -> bool:
        try:
            return self.get(path) == "ok\n"
        except OSError:
            return False

    def get(self, path: str) -> str:
        """Return the answer to a GET of a path. Only the API server checks the certificate."""
        url = f"https://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=10, context=ssl._create_unverified_context()) as response:
            return str(response.read().decode())

    def metrics(self) -> str:
        """Return what Prometheus reads."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())

    def reviews(self) -> int:
        """Return the number of reviews so far."""
        return int(float(self.metrics().partition("\nmldiagnostics_webhook_review_seconds_count ")[2].split()[0]))

    def register(self, namespace: str, *, timeout_seconds: int = 30) -> None:
        """Have the API server ask for pods that are created in a namespace of a test, and wait until it does."""
        register(self.server, namespace, self.port, self.authority.path.read_bytes(), timeout_seconds=timeout_seconds)
        self._namespaces.append(namespace)
        self.wait_until_asked(namespace)

    def client_config(self) -> dict[str, str]:
        """Return how the API server reaches it, in a configuration."""
        bundle = base64.b64encode(self.authority.path.read_bytes()).decode()
        return {"url": f"https://localhost:{self.port}/mutate", "caBundle": bundle}

    def wait_until_asked(self, namespace: str) -> None:
        """Wait until the API server asks: it reads its configurations from a watch of its own."""
        wait_until(lambda: self._is_asked(namespace))

    def unregister(self, namespace: str) -> None:
        """Have the API server ask no longer."""
        self._namespaces.remove(namespace)
        self.server.call("DELETE", f"{CONFIGURATIONS}/webhook-{namespace}")

    def _is_asked(self, namespace: str) -> bool:
        metadata = {"generateName": "probe-", "labels": {"managed-mldiagnostics-gke": "true"}}
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _SPECS["Pod"]}
        self.server.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", probe)
        return f'"namespace": "{namespace}"' in self.log


CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_SETTINGS = {
    "cluster": "projects/p/locations/l/clusters/c",
    "host": "127.0.0.1",
    "stand_down": "never",  # Other tests have other injectors.
    "drain_seconds": 0.1,
}
