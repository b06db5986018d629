"""Register a viewer on GKE with the proxy. Runs in an init container, as `python -c` of this file.

Arguments: the region, the namespace, the service to annotate with the link, and the output file for the agent.
"""

import json
import os
import shlex
import ssl
import sys
import urllib.request

METADATA = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}/computeMetadata/v1/instance"
STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
CONFIGURATION = f"{STORAGE}/storage/v1/b/dl-platform-public-configs/o/proxy-agent-config.json?alt=media"
ACCOUNT = os.environ.get("KUBERNETES_ACCOUNT_DIRECTORY", "/var/run/secrets/kubernetes.io/serviceaccount")
CLUSTER = os.environ.get("KUBERNETES_URL", "https://kubernetes.default.svc")


def ask(
    url: str,
    headers: dict[str, str],
    data: bytes | None = None,
    method: str | None = None,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """Return the answer to a request."""
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        body: bytes = answer.read(4 << 20)
        return body


def about(path: str) -> str:
    """Return a value of the metadata server."""
    return ask(f"{METADATA}/service-accounts/default/{path}", {"Metadata-Flavor": "Google"}).decode()


def register(region: str) -> tuple[str, str, str]:
    """Register this node with its region's proxy, and return the proxy, the node's id, and the host of the link."""
    proxy = json.loads(ask(CONFIGURATION, {}))["agent-docker-containers"]["latest"]["proxy-urls"][region][0]
    token = json.loads(about("token"))["access_token"]
    identity = about(f"identity?format=full&audience={proxy}/request-endpoint")
    headers = {"Authorization": f"Bearer {token}", "X-Inverting-Proxy-VM-ID": identity}
    answer = json.loads(ask(f"{proxy}/request-endpoint", headers, b""))
    backend = answer["backendID"]
    return proxy, backend, answer.get("hostname") or f"{backend}-dot-{region}.notebooks.googleusercontent.com"


def annotate(namespace: str, service: str, link: str) -> None:
    """Write the link to the annotation that `xprofiler` reads."""
    with open(f"{ACCOUNT}/token") as file:  # noqa: PTH123
        token = file.read().strip()
    authority = f"{ACCOUNT}/ca.crt"
    context = ssl.create_default_context(cafile=authority) if CLUSTER.startswith("https:") else None
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    patch = json.dumps({"metadata": {"annotations": {"proxy-url": link}}}).encode()
    ask(f"{CLUSTER}/api/v1/namespaces/{namespace}/services/{service}", headers, patch, "PATCH", context)


def main(region: str, namespace: str, service: str, output: str) -> None:
    """Register, write the agent's parameters to a file, and annotate the service."""
    proxy, backend, host = register(region)
    with open(output, "w") as file:  # noqa: PTH123
        file.write(f"PROXY={shlex.quote(proxy + '/')}\nBACKEND={shlex.quote(backend)}\n")
    annotate(namespace, service, f"https://{host}")


if __name__ == "__main__":
    main(*sys.argv[1:])
