"""The metadata server of a Google Cloud VM or pod, on loopback.

    with MetadataServer(project="my-project") as server:
        subprocess.run([sys.executable, "train.py"], env={**os.environ, **server.environment()})

The real google.auth reads its project and its tokens from this server. It reads `GCE_METADATA_HOST` when
`google.auth.compute_engine` is imported: set the variables before that, or in a child process.

Format: https://cloud.google.com/compute/docs/metadata/overview
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response

_ROOT = "/computeMetadata/v1/"
_FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class MetadataServer(LoopbackServer):
    """Serve a machine's metadata: project, zone, service account and its token, attributes.

    The operations of its `faults` and `requests` are "ping", "token", and "metadata" for everything else.

    Args:
        project: The project's id.
        zone: The zone, such as "us-central2-b".
        email: The email of the default service account; None for a machine without one.
        token: The access token; you may change it while the server runs.
        expires_in_seconds: The lifetime of a token.
        scopes: The access scopes of the service account.
        attributes: Custom metadata of the instance, such as {"cluster-name": "c"}.
        machine_type: The machine's type, such as "ct5lp-hightpu-4t".
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        *,
        project: str = "test-project",
        zone: str = "us-central2-b",
        email: str | None = "tester@test-project.iam.gserviceaccount.com",
        token: str = "token-of-the-metadata-server",
        expires_in_seconds: int = 3600,
        scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",),
        attributes: Mapping[str, str] | None = None,
        machine_type: str = "n2-standard-2",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.project = project
        self.zone = zone
        self.email = email
        self.token = token
        self.expires_in_seconds = expires_in_seconds
        self.scopes = scopes
        self.attributes = dict(attributes or {})
        self.machine_type = machine_type
        super().__init__(clock=clock)

    @property
    def host(self) -> str:
        """The server's address, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that make google.auth and the ML diagnostics libraries use this server."""
        return {"GCE_METADATA_HOST": self.host, "GCE_METADATA_IP": self.host, "NO_GCE_CHECK": "false"}

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        if path.endswith("/token"):
            return "token"
        return "ping" if path.strip("/") == "" else "metadata"

    def handle(self, request: Request) -> Response:
        """Answer a request: a value as text, a folder as a list of names or, if recursive, as JSON."""
        if request.path.strip("/") == "":
            return Response(200, b"computeMetadata/\n", _text())
        if request.headers.get("Metadata-Flavor") != "Google":
            return _refusal(403, "Missing Metadata-Flavor:Google header.")
        if request.method != "GET" or not request.path.startswith(_ROOT):
            return _refusal(404, "There is no such page.")
        found: Any = self._tree()
        for name in filter(None, request.path.removeprefix(_ROOT).split("/")):
            if not isinstance(found, dict) or name not in found:
                return _refusal(404, f"There is no such metadata: {request.path}")
            found = found[name]
        recursive = request.query.get("recursive", "").lower() == "true"
        if isinstance(found, _Token) or (recursive and isinstance(found, dict)):
            return Response(200, json.dumps(_plain(found)).encode(), {**_FLAVOR, "Content-Type": "application/json"})
        if isinstance(found, dict):
            found = "".join(name + ("/\n" if _is_folder(value) else "\n") for name, value in found.items())
        return Response(200, str(found).encode(), _text())

    def _tree(self) -> dict[str, Any]:
        zone = f"projects/123456789012/zones/{self.zone}"
        instance: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "hostname": f"test-vm.{self.zone}.c.{self.project}.internal",
            "id": "1234567890123456789",
            "machine-type": f"projects/123456789012/machineTypes/{self.machine_type}",
            "name": "test-vm",
            "zone": zone,
        }
        accounts: dict[str, Any] = {}
        if self.email is not None:
            account = {
                "aliases": "default",
                "email": self.email,
                "scopes": "\n".join(self.scopes) + "\n",
                "token": _Token(access_token=self.token, expires_in=self.expires_in_seconds, token_type="Bearer"),
            }
            accounts = {"default": account, self.email: account}
        instance["service-accounts"] = accounts
        return {
            "instance": instance,
            "project": {"numeric-project-id": "123456789012", "project-id": self.project},
            "universe": {"universe-domain": "googleapis.com"},
        }


class _Token(dict[str, Any]):
    """A value that is served as JSON."""


def _is_folder(value: Any) -> bool:
    return isinstance(value, dict) and not isinstance(value, _Token)


def _plain(value: Any, *, name: str = "") -> Any:
    """Return the tree in the format of recursive=true: camelCase names, scopes as a list, tokens omitted."""
    if isinstance(value, _Token):
        return dict(value)
    if isinstance(value, dict):
        keep_names = name in ("attributes", "service-accounts")
        return {
            key if keep_names else _camel_case(key): _plain(inner, name=key)
            for key, inner in value.items()
            if not isinstance(inner, _Token)
        }
    if name == "aliases" or name == "scopes":
        return str(value).split()
    return value


def _camel_case(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _text() -> dict[str, str]:
    return {**_FLAVOR, "Content-Type": "application/text"}


def _refusal(status: int, message: str) -> Response:
    return Response(status, message.encode(), {**_FLAVOR, "Content-Type": "text/html; charset=UTF-8"})
