"""A namespace of the real API server for each test, and the webhook as a process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...kube_api import KubeApi
from .clusters import Webhook
from .operators import add_connections

_numbers = itertools.count()


@pytest.fixture(scope="session")
def connections(kube_api: KubeApi) -> KubeApi:
    """Return the API server, with the kind of the objects that the operator captures."""
    add_connections(kube_api)
    return kube_api


@pytest.fixture
def namespace(kube_api: KubeApi, request: pytest.FixtureRequest) -> str:
    """Return the name of a namespace of this test's own, without the label unless it is `labelled`."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    labels = {"test": name}
    if "labelled" in request.fixturenames:  # From the start: the API server reads later changes from a watch.
        labels["managed-mldiagnostics-gke"] = "true"
    kube_api.apply("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    return name


@pytest.fixture
def labelled(namespace: str) -> str:
    """Return the name of a namespace of this test's own; its pods are to have the variables."""
    return namespace


@pytest.fixture(scope="module")
def webhook_of_module(kube_api: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Start the webhook, for all tests of a module that do not stop it."""
    pytest.importorskip("starlette", reason="Starlette needs Python 3.11")
    with Webhook(kube_api, tmp_path_factory.mktemp("webhook")) as server:
        yield server


@pytest.fixture
def webhook(webhook_of_module: Webhook, namespace: str) -> Iterator[Webhook]:
    """Have the API server ask the webhook for pods of the test's namespace."""
    webhook_of_module.register(namespace)
    yield webhook_of_module
    webhook_of_module.unregister(namespace)


@pytest.fixture
def own_webhook(kube_api: KubeApi, namespace: str, tmp_path: Path) -> Iterator[Webhook]:
    """Start another webhook, which the test may stop, and have the API server ask it."""
    with Webhook(kube_api, tmp_path) as server:
        server.register(namespace)
        yield server
