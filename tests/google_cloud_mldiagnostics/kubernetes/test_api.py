"""Calls of the Kubernetes API: objects are created, changed and deleted, and refusals are errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi, object_path
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesUnreachableError

from ...kube_api import KubeApi
from ...waiting import bound_port

_Value = TypeVar("_Value")


def calling(server: KubeApi, use: Callable[[KubernetesApi], Awaitable[_Value]]) -> _Value:
    async def call() -> _Value:
        async with KubernetesApi(Connection(server.url, server.context(), server.token_file())) as api:
            return await use(api)

    return asyncio.run(call())


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_an_object_is_created_changed_listed_and_deleted(kube_api: KubeApi, namespace: str) -> None:
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    path = object_path("", "v1", "configmaps", "a", namespace)

    async def use(api: KubernetesApi) -> None:
        await api.create(collection, config_map("dry"), is_dry_run=True)
        created = await api.create(collection, config_map("a", x="1"))
        assert (await api.get(path))["data"] == {"x": "1"}
        changed = await api.patch(path, {"data": {"y": "2"}})
        assert changed["data"] == {"x": "1", "y": "2"}
        names = [each["metadata"]["name"] for each in await api.objects(collection)]
        assert "a" in names
        assert "dry" not in names
        with pytest.raises(KubernetesApiError) as conflict:
            await api.patch(path, {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {}})
        assert conflict.value.status == 409
        uid, version = changed["metadata"]["uid"], changed["metadata"]["resourceVersion"]
        with pytest.raises(KubernetesApiError) as other:
            await api.delete(path, uid="of-another-object", resource_version=version)
        assert other.value.status == 409
        await api.delete(path, uid=uid, resource_version=version)
        with pytest.raises(KubernetesApiError) as gone:
            await api.get(path)
        assert gone.value.status == 404

    calling(kube_api, use)


def test_an_api_server_that_refuses_connections_is_unreachable() -> None:
    async def use(port: int) -> None:
        async with KubernetesApi(Connection(f"http://127.0.0.1:{port}", None)) as api:
            await api.version()

    with (
        bound_port() as port,
        pytest.raises(KubernetesUnreachableError, match="/version: the API server did not answer"),
    ):
        asyncio.run(use(port))


def test_a_token_that_is_being_replaced_is_read_again_and_never_sent_empty(tmp_path: Path) -> None:
    file = tmp_path / "token"
    connection = Connection("https://127.0.0.1:1", ssl.create_default_context(), file)

    def sent(now: float) -> str:
        return asyncio.run(connection.headers(now))["Authorization"]

    file.write_text("")
    with pytest.raises(KubernetesUnreachableError, match="is empty"):
        sent(0)
    file.write_text("first\n")
    assert sent(1) == "Bearer first"
    file.write_text("")
    assert sent(100) == "Bearer first"
    file.write_text("second\n")
    assert sent(101) == "Bearer second"
