"""The operator as a process, objects that it captures, and pods with a profiler server on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from google_cloud_mldiagnostics._kubernetes.connections.resource import custom_resource_definition
from google_cloud_mldiagnostics._kubernetes.rights import OPERATOR_RIGHTS

from ...deploy.charts import OPERATOR, documents
from ...deploy.charts import manifest as manifest_of
from ...kube_api import KubeApi
from ...waiting import free_port, wait_until
from .clusters import CONTAINER, create

KIND = {"apiVersion": "diagon.gke.io/v1alpha1", "kind": "MLDiagnosticsConnection"}
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def _rules() -> list[dict[str, Any]]:
    """Return the rights that the manifest gives to the operator: in all namespaces, and for its lease."""
    names = ("mldiagnostics-connection-operator", "mldiagnostics-connection-operator-leader")
    found = documents(manifest_of(OPERATOR).read_text())
    roles = [each for each in found if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"] in names]
    return [rule for role in roles for rule in role["rules"]]


def add_connections(server: KubeApi) -> None:
    """Add the kind of the objects, and give the operator's account the rights that it needs, and no others."""
    definition = custom_resource_definition()
    server.apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    server.wait_until_served("/apis/diagon.gke.io/v1alpha1/mldiagnosticsconnections")
    server.apply(f"{_RBAC}/clusterroles", {"metadata": {"name": "operator"}, "rules": _rules()})
    server.apply(
        f"{_RBAC}/clusterrolebindings",
        {
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator"},
            "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "gke-mldiagnostics"}],
        },
    )


RIGHTS = [(right.resource, right.verb) for right in OPERATOR_RIGHTS if right.resource != "namespaces"]
"""Each right that an operator needs in a namespace: a resource, and a verb."""


def allow_stranger(server: KubeApi, namespace: str, *, without: tuple[str, str]) -> None:
    """Give another account the rights of an operator in one namespace, without one of them."""
    rules = [
        {**rule, "resources": [resource], "verbs": verbs}
        for rule in _rules()
        for resource in rule["resources"]
        if (verbs := [verb for verb in rule["verbs"] if (resource, verb) != without])
    ]
    path = f"{_RBAC}/namespaces/{namespace}"
    server.apply(f"{path}/roles", {"metadata": {"name": "stranger"}, "rules": rules})
    server.apply(
        f"{path}/rolebindings",
        {
            "metadata": {"name": "stranger"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "stranger"},
            "subjects": [{"kind": "ServiceAccount", "name": "stranger", "namespace": "gke-mldiagnostics"}],
        },
    )


def running_pod(server: KubeApi, namespace: str, name: str, *, ip: str = "127.0.0.1", **spec: Any) -> dict[str, Any]:
    """Create a pod, and make it Running as a kubelet does."""
    pod = create(server, namespace, "Pod", name, spec={"containers": [CONTAINER], **spec})
    status = {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    server.call("PATCH", path, status, kind="application/merge-patch+json")
    return pod


def manifest(namespace: str, name: str, pods: str, port: int, location: str, **more: Any) -> dict[str, Any]:
    """Return an object that asks for a capture of a second."""
    capture = {
        "capturePort": port,
        "durationSeconds": more.get("seconds", 1),
        "podName": pods,
        "podNamespace": more.get("pod_namespace", namespace),
        "profiler": "google_cloud_mldiagnostics",
        "storageLocation": location,
    }
    metadata = {"name": name, "namespace": namespace, "annotations": more.get("annotations", {})}
    return {**KIND, "metadata": metadata, "spec": {"triggerCapture": capture}}


def path_of(namespace: str, name: str = "") -> str:
    """Return the path of an object, or of all in a namespace."""
    return f"/apis/diagon.gke.io/v1alpha1/namespaces/{namespace}/mldiagnosticsconnections/{name}".rstrip("/")


def status_of(server: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    """Return the status of an object; empty before the first."""
    return dict(server.call("GET", path_of(namespace, name)).get("status", {}))


def final_status(server: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    """Wait for the last phase of an object, and return its status."""

    def find() -> dict[str, Any] | None:
        status = status_of(server, namespace, name)
        return status if status.get("phase") in ("Succeeded", "Failed") else None

    found = wait_until(find)
    assert found is not None
    return found


_PROGRAM = """
import json, logging, ssl, sys
from pathlib import Path
from google_cloud_mldiagnostics._kubernetes.api import Connection
from google_cloud_mldiagnostics._kubernetes.connections.operator import OperatorSettings, serve
from google_cloud_mldiagnostics._kubernetes.connections.step import Policy
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
url, authority, token, settings, policy = sys.argv[1:]
settings = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(settings).items()}
connection = Connection(url, ssl.create_default_context(cafile=authority), Path(token))
serve(OperatorSettings(policy=Policy(**json.loads(policy)), **settings), connection)
"""


class Operator:
    """The operator of one namespace as a process."""

    def __init__(
        self,
        server: KubeApi,
        namespace: str,
        folder: Path,
        *,
        account: str = "operator",
        url: str = "",
        policy: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.probe_port, self.metrics_port = free_port(), free_port()
        self._log = folder / f"operator-{self.probe_port}.log"
        self._policy = {"allows_local_storage": True, **(policy or {})}
        self._settings = {
            "namespaces": [namespace],
            "lease_namespace": namespace,
            "host": "127.0.0.1",
            "probe_port": self.probe_port,
            "metrics_port": self.metrics_port,
            **settings,
        }
        self._arguments = [url or server.url, str(server.authority), str(server.token_file(account))]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Operator:
        command = [sys.executable, "-c", _PROGRAM, *self._arguments, *map(json.dumps, (self._settings, self._policy))]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """The log of the operator."""
        return self._log.read_text()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal, and return the exit code."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        return self.process.wait(30)

    def wait_until_it_leads(self) -> None:
        """Wait until this operator acts."""
        try:
            wait_until(lambda: " leads" in self.log, running=self.process)
        except AssertionError as error:
            raise AssertionError(f"{error}; the operator's log: {self.log}") from None


class Deployment:
    """Operators that are started again when they end, as those of a Deployment. A context manager."""

    def __init__(self, replicas: int, start: Callable[[], Operator]) -> None:
        """Start none yet.

        Args:
            replicas: How many run at once.
            start: Returns an operator that is not running.
        """
        self._start = start
        self._replicas = replicas
        self._operators: list[Operator] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_running)

    def __enter__(self) -> Deployment:
        self._operators = [self._start().__enter__() for _ in range(self._replicas)]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for operator in self._operators:
            operator.__exit__(None, None, None)

    def kill(self, index: int) -> None:
        """Kill one of them.

        Args:
            index: Which one.
        """
        process = self._operators[index].process
        assert process is not None
        process.kill()

    @property
    def log(self) -> str:
        """The logs of those that run."""
        return "\n".join(operator.log for operator in self._operators)

    def _keep_running(self) -> None:
        while not self._ended.wait(0.5):
            for operator in self._operators:
                if operator.process is not None and operator.process.poll() is not None:
                    operator.__enter__()


@contextlib.contextmanager
def jax_pod(port: int = 0) -> Iterator[int]:
    """Run a JAX program with a profiler server, as the container of a pod; return its port.

    Args:
        port: The port; 0 for one that is free when JAX is loaded, which takes other programs the time to take ports.
    """
    text = f"""
import socket
import jax, jax.numpy as jnp
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", {port}))
    port = probe.getsockname()[1]
jax.profiler.start_server(port)
print(port, flush=True)
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((1000, 1000))
while True:
    x = step(x).block_until_ready()
"""
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, env=environ)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
