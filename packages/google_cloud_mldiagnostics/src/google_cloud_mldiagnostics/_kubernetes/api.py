"""A small asynchronous client of the Kubernetes API: the few calls that the webhook and the operator make."""

from __future__ import annotations

import asyncio
import json
import math
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp

from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError, KubernetesUnreachableError

__all__ = ["Connection", "KubernetesApi", "Listing", "object_path", "pod_namespace"]

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS: Final = 60.0
"""The kubelet replaces the token in its file long before it expires."""
_CALL_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 << 20
_PAGE_OBJECTS: Final = 500
_SILENT_SECONDS: Final = 5.0
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


def object_path(group: str, version: str, resource: str, name: str, namespace: str = "") -> str:
    """Return the path of an object in the API.

    Args:
        group: The API group; empty for the core group.
        version: The version of the group.
        resource: The plural of the kind, such as `jobsets`.
        name: The name of the object.
        namespace: Its namespace; empty for an object of the cluster.
    """
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = f"/namespaces/{quote(namespace, safe='', errors='replace')}" if namespace else ""
    return f"{root}{scope}/{resource}/{quote(name, safe='', errors='replace')}"


def pod_namespace(folder: Path = _SERVICE_ACCOUNT) -> str:
    """Return the namespace of this pod, by its service account.

    Args:
        folder: The folder of the service account.

    Raises:
        KubernetesUnreachableError: This process is in no pod.
    """
    try:
        return (folder / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise KubernetesUnreachableError(f"this process is in no pod with a service account: {error}") from error


class Connection:
    """The address of an API server, and how a client identifies itself there."""

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext | None,
        token_file: Path | None = None,
        *,
        read_token: Callable[[], str] | None = None,
        proxy: str | None = None,
        server_name: str | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            server: The base URL.
            context: Which certificates are trusted; None for the system's.
            token_file: The file of the bearer token, which may be replaced at any time; None without one.
            read_token: Returns the bearer token instead; it may block for a while, as a program that is run.
            proxy: The URL of the HTTP proxy on the way; None without one.
            server_name: The name in the server's certificate; None for that of the URL.
        """
        self.server = server.rstrip("/")
        self.context = context
        self.proxy = proxy
        self.server_name = server_name
        self._token_file = token_file
        self._read_token = read_token
        self._token = ""
        self._read_at = float("-inf")

    @classmethod
    def of_pod(cls, environ: Mapping[str, str] = os.environ, folder: Path = _SERVICE_ACCOUNT) -> Connection:
        """Return the connection of a pod, by its service account.

        Args:
            environ: The environment of the pod.
            folder: The folder of the service account.

        Raises:
            KubernetesUnreachableError: This process is in no pod, or the pod has no token.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        token, authority = folder / "token", folder / "ca.crt"
        if not host or not token.exists():
            raise KubernetesUnreachableError(
                f"this process is in no pod with a service account: KUBERNETES_SERVICE_HOST or {token} is missing"
            )
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", ssl.create_default_context(cafile=str(authority)), token)

    async def headers(self, now: float) -> dict[str, str]:
        """Return the headers that identify the client.

        Args:
            now: Monotonic seconds.

        Raises:
            KubernetesConfigurationError: There is no token.
            KubernetesUnreachableError: The file of the token is empty: it may be being replaced.
            OSError: The file of the token cannot be read.
        """
        if self._read_token is not None:
            return {"Authorization": f"Bearer {await asyncio.to_thread(self._read_token)}"}
        if self._token_file is None:
            return {}
        if now - self._read_at >= _TOKEN_SECONDS:
            token = self._token_file.read_text(encoding="utf-8").strip()
            if token:
                self._token, self._read_at = token, now
            elif not self._token:  # Without one, the API server answers as it does to anybody.
                raise KubernetesUnreachableError(f"{self._token_file} is empty: no token to identify with; write one")
        return {"Authorization": f"Bearer {self._token}"}


class Listing(NamedTuple):
    """The objects of a collection.

    Attributes:
        objects: The objects.
        resource_version: The version of the collection; a watch from it on yields what changes.
    """

    objects: list[dict[str, Any]]
    resource_version: str


class KubernetesApi:
    """Calls of the API, each within its own time. Use it in an `async with` block."""

    def __init__(self, connection: Connection) -> None:
        """Connect to nothing yet."""
        self._connection = connection
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubernetesApi:
        context = self._connection.context
        connector = aiohttp.TCPConnector(ssl=True if context is None else context, limit=64)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def metadata(self, path: str, *, timeout_seconds: float) -> dict[str, Any]:
        """Return the metadata of an object, without the rest of it.

        Args:
            path: The path of the object: see `object_path`.
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused, as with 403 and 404.
            KubernetesUnreachableError: The server did not answer in time, or not with an object.
        """
        answer = await self._request("GET", path, timeout_seconds, headers={"Accept": _METADATA_ONLY})
        metadata = answer.get("metadata")
        if not isinstance(metadata, dict):
            raise KubernetesUnreachableError(f"{path}: expected an object with metadata, got {answer!s:.100}")
        return metadata

    async def get(self, path: str, *, timeout_seconds: float = _CALL_SECONDS) -> dict[str, Any]:
        """Return an object.

        Args:
            path: The path of the object: see `object_path`.
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused, as with 403 and 404.
            KubernetesUnreachableError: The server did not answer in time, or not with an object.
        """
        return await self._request("GET", path, timeout_seconds)

    async def objects(self, path: str, *, timeout_seconds: float = _CALL_SECONDS) -> list[dict[str, Any]]:
        """Return all objects of a collection: see `listing`."""
        return (await self.listing(path, timeout_seconds=timeout_seconds)).objects

    async def listing(self, path: str, *, timeout_seconds: float = _CALL_SECONDS) -> Listing:
        """Return all objects of a collection, and its version.

        Args:
            path: The path of the collection: that of an object without its name.
            timeout_seconds: The most time that each call may take: there is one for 500 objects.

        Raises:
            KubernetesApiError: The server refused.
            KubernetesUnreachableError: The server did not answer in time, or not with objects.
        """
        found: list[dict[str, Any]] = []
        version = ""
        async for page in self.pages(path, timeout_seconds=timeout_seconds):
            found += page.objects
            version = page.resource_version
        return Listing(found, version)

    async def pages(
        self, path: str, *, selector: str = "", timeout_seconds: float = _CALL_SECONDS
    ) -> AsyncIterator[Listing]:
        """Yield the objects of a collection, 500 at a time, so that not all are held at once.

        Args:
            path: The path of the collection: that of an object without its name.
            selector: A selector of labels; empty for all objects.
            timeout_seconds: The most time that each call may take.

        Raises:
            KubernetesApiError: The server refused.
            KubernetesUnreachableError: The server did not answer in time, or not with objects.
        """
        query = {"limit": str(_PAGE_OBJECTS), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._request("GET", path, timeout_seconds, query=query)
            items, metadata = page.get("items"), page.get("metadata")
            if not isinstance(items, list) or not isinstance(metadata, dict):
                raise KubernetesUnreachableError(f"{path}: expected a list of objects, got {page!s:.100}")
            yield Listing(items, str(metadata.get("resourceVersion", "")))
            if not metadata.get("continue"):
                return
            query["continue"] = str(metadata["continue"])

    async def watch(
        self, path: str, resource_version: str, *, seconds: float, selector: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the changes of a collection, as `{"type": "ADDED", "object": {...}}`, for some time.

        Args:
            path: The path of the collection.
            resource_version: The version of its listing, after which changes are yielded.
            seconds: The time; a server that is silent for a little longer is taken for dead.
            selector: A selector of labels; empty for all objects.

        Raises:
            KubernetesApiError: The server refused, as with 410 for a version that it has forgotten.
            KubernetesUnreachableError: The connection broke, or the server sent something else.
        """
        assert self._session is not None, "use it in an `async with` block"
        query = {"watch": "true", "resourceVersion": resource_version, "timeoutSeconds": str(math.ceil(seconds))}
        if selector:
            query["labelSelector"] = selector
        try:
            async with self._session.get(
                self._connection.server + path,
                params=query,
                headers=await self._connection.headers(time.monotonic()),
                allow_redirects=False,
                proxy=self._connection.proxy,
                server_hostname=self._connection.server_name,
                timeout=aiohttp.ClientTimeout(
                    total=seconds + _SILENT_SECONDS, sock_connect=_SILENT_SECONDS, sock_read=seconds + _SILENT_SECONDS
                ),
                read_bufsize=_MOST_BYTES,
            ) as response:
                if response.status != 200:
                    raise KubernetesApiError(path, response.status, _message(await _limited(response)))
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise KubernetesApiError(path, int(event["object"]["code"]), str(event["object"]["message"]))
                    yield event
        except KubernetesError:
            raise
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            raise _unreachable(path, error) from error

    async def create(
        self,
        path: str,
        document: Mapping[str, Any],
        *,
        is_dry_run: bool = False,
        timeout_seconds: float = _CALL_SECONDS,
    ) -> dict[str, Any]:
        """Create an object, and return it as the server has it.

        Args:
            path: The path of its collection.
            document: The object.
            is_dry_run: If True the server does everything but keep the object.
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused, as with 409 for a name that exists.
            KubernetesUnreachableError: The server did not answer in time: the object may exist.
        """
        query = {"dryRun": "All"} if is_dry_run else {}
        return await self._request("POST", path, timeout_seconds, document, query=query)

    async def patch(
        self, path: str, change: Mapping[str, Any], *, timeout_seconds: float = _CALL_SECONDS
    ) -> dict[str, Any]:
        """Change the fields of an object that are given, by a merge patch, and return the object.

        Args:
            path: The path of the object, or of its status.
            change: The fields. With `metadata.resourceVersion` the server refuses, with 409, if the object is of
                another version by now.
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused.
            KubernetesUnreachableError: The server did not answer in time: the object may be changed.
        """
        headers = {"Content-Type": "application/merge-patch+json"}
        return await self._request("PATCH", path, timeout_seconds, change, headers=headers)

    async def replace(
        self, path: str, document: Mapping[str, Any], *, timeout_seconds: float = _CALL_SECONDS
    ) -> dict[str, Any]:
        """Replace an object as a whole, and return it.

        Args:
            path: The path of the object.
            document: The object; the server refuses, with 409, if its `metadata.resourceVersion` is not the newest.
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused.
            KubernetesUnreachableError: The server did not answer in time: the object may be replaced.
        """
        return await self._request("PUT", path, timeout_seconds, document)

    async def delete(
        self, path: str, *, uid: str, resource_version: str, timeout_seconds: float = _CALL_SECONDS
    ) -> None:
        """Delete an object, if it is of this version.

        Args:
            path: The path of the object.
            uid: Its id; another object of that name is not deleted.
            resource_version: Its version; the server refuses, with 409, if it is of another one.
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused.
            KubernetesUnreachableError: The server did not answer in time: the object may be gone.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        await self._request("DELETE", path, timeout_seconds, {"preconditions": conditions})

    async def version(self, *, timeout_seconds: float = _CALL_SECONDS) -> str:
        """Return the version of the server, such as v1.31.0.

        Args:
            timeout_seconds: The most time that the call may take.

        Raises:
            KubernetesApiError: The server refused.
            KubernetesUnreachableError: The server did not answer in time.
        """
        return str((await self._request("GET", "/version", timeout_seconds)).get("gitVersion", ""))

    async def _request(
        self,
        method: str,
        path: str,
        timeout_seconds: float,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        assert self._session is not None, "use it in an `async with` block"
        content = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                self._connection.server + path,
                params=query,
                data=None if body is None else json.dumps(body).encode(),
                headers={**content, **headers, **await self._connection.headers(time.monotonic())},
                allow_redirects=False,
                proxy=self._connection.proxy,
                server_hostname=self._connection.server_name,
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            ) as response:
                answer_bytes = await _limited(response)
                if not response.ok:
                    raise KubernetesApiError(path, response.status, _message(answer_bytes))
                answer = json.loads(answer_bytes)
        except KubernetesError:
            raise
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            raise _unreachable(path, error) from error
        if not isinstance(answer, dict):
            raise KubernetesUnreachableError(f"{path}: expected an object, got {answer!s:.100}")
        return answer


def _unreachable(path: str, error: Exception) -> KubernetesUnreachableError:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return KubernetesUnreachableError(f"{path}: the API server did not answer ({reason})")


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(body)


def _message(body: bytes) -> str:
    """Return the sentence of a `Status` object, which the server returns instead of the object."""
    try:
        return str(json.loads(body)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
