"""Another webhook, which is asked after ours and adds a container, as a service mesh does."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ml_diagnostics_testing.certificates import CertificateAuthority

from ...kube_api import KubeApi
from .clusters import CONFIGURATIONS, CONTAINER

__all__ = ["adding_webhook"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # The standard library calls it so.
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        containers = review["request"]["object"]["spec"]["containers"]
        if not any(each["name"] == "added" for each in containers):
            patch = [{"op": "add", "path": "/spec/containers/-", "value": {**CONTAINER, "name": "added"}}]
            encoded = base64.b64encode(json.dumps(patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing to the output of the tests."""


@contextlib.contextmanager
def adding_webhook(server: KubeApi, namespace: str, folder: Path) -> Iterator[Callable[[], bool]]:
    """Install the webhook for a namespace; yield a function that returns True once the API server asks it.

    Args:
        server: The API server.
        namespace: The namespace.
        folder: A folder for its certificate.
    """
    authority = CertificateAuthority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("adding"))
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    serving = threading.Thread(target=listening.serve_forever)
    serving.start()
    name = f"zz-adding-{namespace}"  # The API server asks in the order of the names.
    server.apply(CONFIGURATIONS, _configuration(name, namespace, listening.server_port, authority.path.read_bytes()))

    def is_asked() -> bool:
        pod = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [CONTAINER]}}
        probe = server.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        return len(probe["spec"]["containers"]) == 2

    try:
        yield is_asked
    finally:
        server.call("DELETE", f"{CONFIGURATIONS}/{name}")
        listening.shutdown()
        serving.join()
        listening.server_close()


def _configuration(name: str, namespace: str, port: int, bundle: bytes) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    entry = {
        "name": "adding.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"test": namespace}},
        "clientConfig": {"url": f"https://localhost:{port}/", "caBundle": base64.b64encode(bundle).decode()},
    }
    return {"metadata": {"name": name}, "webhooks": [entry]}
