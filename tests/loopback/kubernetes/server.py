"""The loopback Kubernetes cluster: its REST API, and its interface for tests."""

import contextlib
import re
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ml_diagnostics_testing.http_server import (
    ApiError,
    LoopbackServer,
    Request,
    Response,
    json_response,
)

from .kinds import Kind, discovery, find_kind, find_plural
from .kubeconfig import kubeconfig
from .objects import Objects
from .pods import Pod, running
from .store import ObjectStore, Resource
from .upgrades import exec_response, port_forward_response

_PATH = re.compile(
    r"/(?P<group>api/[^/]+|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)
_VERBS: Mapping[tuple[str, bool], str] = {
    ("GET", False): "list",
    ("POST", False): "create",
    ("DELETE", False): "deletecollection",
    ("GET", True): "get",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
}
_PARTS: Mapping[str, str] = {"exec": "exec", "portforward": "port_forward", "log": "log"}
_REASONS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class KubernetesServer(LoopbackServer):
    """Serve the part of a Kubernetes cluster that the real kubectl needs, on 127.0.0.1.

    Pods are folders of this machine. `kubectl exec` runs programs of this machine there, and the ports of pods are
    ports of this machine.

    It runs from construction until `close`, and is a context manager. The operations of its `faults` and `requests`
    are "get", "list", "create", "update", "patch", "delete", "deletecollection", "exec", "port_forward", "log" and
    "discovery". If exec or port_forward fails, kubectl retries with an older protocol: use `faults.always`.
    `Truncate` accepts the connection and breaks it at once.

    Args:
        context: The context's name in the kubeconfig.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        denied: The requests to reject with 403: verb and resource as in roles, such as "create pods/exec".
        folder: The folder of the pods' folders and the kubeconfig; `close` deletes it.
    """

    def __init__(self, context: str = "test-cluster", *, clock: Callable[[], float] = time.time) -> None:
        self.context = context
        self.denied: set[str] = set()
        self._temporary = tempfile.TemporaryDirectory(prefix="loopback-kubernetes-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self._store = ObjectStore(clock)
        self._objects = Objects(self._store, self._call, self._on_deleted)
        self._callbacks: list[Callable[[Resource], object]] = []
        self._threads: list[threading.Thread] = []
        self._pods: dict[tuple[str, str], Pod] = {}
        for name in ("default", "kube-system"):
            self._store.put(find_plural("namespaces"), "", {"metadata": {"name": name}, "status": {"phase": "Active"}})
        super().__init__(clock=clock)

    def environment(self) -> dict[str, str]:
        """Return the variables that point kubectl to this cluster, with a separate cache."""
        path = self.folder / "kubeconfig"
        path.write_text(self.kubeconfig())
        return {"KUBECONFIG": str(path), "KUBECACHEDIR": str(self.folder / "cache")}

    def kubeconfig(self, *, context: str = "", namespace: str = "") -> str:
        """Return the text of a kubeconfig for this cluster, with one context and its default namespace."""
        return kubeconfig(self.url, context or self.context, namespace)

    def add_pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        containers: Sequence[str] = ("main",),
        labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        ports: Mapping[int, int] | None = None,
        node: str = "node-1",
        dies_after_seconds: float | None = None,
    ) -> Pod:
        """Add a running pod; replace an existing one of the same name.

        Args:
            name: The name; it is not checked.
            namespace: The namespace; it is created if missing.
            containers: The names of its containers; the first is kubectl's default.
            labels: The labels.
            environment: Additional environment variables of commands.
            ports: The local port for each port of the pod. Other ports map to the same port of this machine.
            node: The name of its node.
            dies_after_seconds: How long it lives after the first command or connection to a port; None means forever.
        """
        if not self.objects("namespaces", fields=f"metadata.name={namespace}"):
            self.put("namespaces", {"metadata": {"name": namespace}})
        spec = {"containers": [{"name": container, "image": "test"} for container in containers], "nodeName": node}
        self._on_deleted(find_plural("pods"), namespace, name)
        self.put("pods", running({"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}), namespace)
        pod = self.pod(name, namespace)
        pod.environment, pod.ports, pod.dies_after_seconds = environment or {}, ports or {}, dies_after_seconds
        return pod

    def pod(self, name: str, namespace: str = "default") -> Pod:
        """Return a pod, including one that a client created.

        Raises:
            ApiError: The pod does not exist.
        """
        resource = self._store.get(find_plural("pods"), namespace, name)
        pod = self._pods.get((namespace, name))
        if pod is None:
            containers = tuple(container["name"] for container in resource["spec"]["containers"])
            folder = Path(tempfile.mkdtemp(prefix="pod-", dir=self.folder))
            pod = Pod(name, namespace, containers, folder, on_death=self._on_death)
            pod = self._pods.setdefault((namespace, name), pod)
        return pod

    def objects(self, plural: str, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Resource]:
        """Return the objects of a kind: "services", "deployments", ...; by default of all namespaces."""
        return self._store.select(find_plural(plural), namespace, labels, fields)

    def put(self, plural: str, resource: Resource, namespace: str = "default") -> Resource:
        """Create or replace an object directly, like another client would; return it."""
        kind = find_plural(plural)
        return self._store.put(kind, namespace if kind.is_namespaced else "", resource)

    def on_created(self, callback: Callable[[Resource], object]) -> None:
        """Call a function in a new thread for each object that clients create from now on, to simulate a controller.

        Args:
            callback: Called with the object.
        """
        self._callbacks.append(callback)

    def close(self) -> None:
        """Stop serving, and kill the commands in the pods."""
        for pod in list(self._pods.values()):
            pod.die()
        super().close()
        for thread in self._threads:
            thread.join(5)
        self._temporary.cleanup()

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        found = _PATH.fullmatch(path)
        if found is None:
            return "discovery"
        return _PARTS.get(found["part"] or "", "") or _VERBS.get((method, found["name"] is not None), "other")

    def refusal(self, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
        """Answer with an error as Kubernetes words it."""
        reason = _REASONS.get(error.code, "Unknown") if error.name.isupper() else error.name
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": error.message,
            "reason": reason,
            "code": error.code,
        }
        return json_response(status, error.code, headers)

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        path = urllib.parse.unquote(request.path)
        if path == "/version":
            return json_response({"major": "1", "minor": "32", "gitVersion": "v1.32.4", "platform": "linux/amd64"})
        found = _PATH.fullmatch(request.path)
        document = discovery(path.strip("/"))
        if document is not None:
            return json_response(document)
        parts = {name: urllib.parse.unquote(part or "") for name, part in found.groupdict().items()} if found else {}
        kind = find_kind(parts["group"], parts["plural"]) if parts else None
        if kind is None:
            raise ApiError(404, "the server could not find the requested resource", name="NotFound")
        verb = self.operation(request.method, request.path)
        if verb in _PARTS.values():
            self._check_allowed("get" if verb == "log" else "create", f"{kind.plural}/{parts['part']}", parts)
            return self._connect(verb, request, parts)
        self._check_allowed(verb, kind.plural, parts)
        return self._objects.do(verb, kind, parts["namespace"], parts["name"], request)

    def _check_allowed(self, verb: str, resource: str, parts: Mapping[str, str]) -> None:
        if f"{verb} {resource}" not in self.denied:
            return
        name = f' "{parts["name"]}"' if parts["name"] else ""
        group = parts["group"].split("/")[1] if parts["group"].startswith("apis/") else ""
        raise ApiError(
            403,
            f'{parts["plural"]}{name} is forbidden: User "tester" cannot {verb} resource "{resource}" in API group '
            f'"{group}" in the namespace "{parts["namespace"] or "default"}"',
        )

    def _connect(self, verb: str, request: Request, parts: Mapping[str, str]) -> Response:
        pod = self.pod(parts["name"], parts["namespace"])
        if not pod.is_alive:
            raise ApiError(500, f"container not running (pod {pod.name!r} has died)", name="InternalError")
        if verb == "log":
            return Response(200, pod.log_answer(request.query).encode(), {"Content-Type": "text/plain"})
        return exec_response(pod, request) if verb == "exec" else port_forward_response(pod, request)

    def _call(self, created: Resource) -> None:
        for callback in self._callbacks:
            thread = threading.Thread(target=callback, args=[created], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _on_death(self, pod: Pod) -> None:
        with contextlib.suppress(ApiError):  # the pod was deleted
            resource = self._store.get(find_plural("pods"), pod.namespace, pod.name)
            resource["status"] = {**resource.get("status", {}), "phase": "Failed", "reason": "OOMKilled"}
            self._store.put(find_plural("pods"), pod.namespace, resource)

    def _on_deleted(self, kind: Kind, namespace: str, name: str) -> None:
        pod = self._pods.pop((namespace, name), None) if kind.name == "Pod" else None
        if pod is not None:
            pod.die()
