"""While another injector is in the cluster, ours reports it and patches no pod; if it may not search, it patches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics
from google_cloud_mldiagnostics._kubernetes.webhook.standing_down import StandDown, other_injectors

from ...kube_api import ADMIN, KubeApi
from .clusters import CONFIGURATIONS, Webhook, create, variables

OWN = "webhook-of-ours"


def named(name: str, service: str = "") -> dict[str, Any]:
    client = {"service": {"name": service, "namespace": "x"}} if service else {"url": "https://diagon.example/"}
    return {"metadata": {"name": name}, "webhooks": [{"clientConfig": client}]}


@pytest.mark.parametrize(
    ("document", "is_injector"),
    [
        (named("gke-managed-mldiagnostics"), True),
        (named("managed-diagon-webhook"), True),
        (named("pods.gke.io", "diagon-injector"), True),
        (named("pods.gke.io", "istiod"), False),
        (named("pods.gke.io"), False),
        (named(OWN, "mldiagnostics-injection-webhook"), False),
        ({"metadata": {"name": "empty"}, "webhooks": None}, False),
    ],
)
def test_an_injector_is_known_by_its_name_or_that_of_its_service(document: dict[str, Any], is_injector: bool) -> None:
    name = document["metadata"]["name"]
    assert other_injectors([document], [], OWN) == ([f"MutatingWebhookConfiguration {name}"] if is_injector else [])


def test_our_own_policy_is_another_injector_and_policies_of_others_are_not() -> None:
    policies = [{"metadata": {"name": name}} for name in ("mldiagnostics-injection", "mldiagnostics-of-others")]
    assert other_injectors([], policies, OWN) == ["MutatingAdmissionPolicy mldiagnostics-injection"]


@pytest.fixture
def other(kube_api: KubeApi, namespace: str) -> Iterator[str]:
    """Install another injector, which asks for no pods, and return its name."""
    name = f"managed-diagon-{namespace}"
    kube_api.apply(CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": []})
    yield name
    kube_api.call("DELETE", f"{CONFIGURATIONS}/{name}")


def test_while_there_is_another_injector_no_pod_is_patched(
    kube_api: KubeApi, labelled: str, other: str, tmp_path: Path
) -> None:
    with Webhook(kube_api, tmp_path, account=ADMIN, stand_down="auto") as webhook:
        webhook.register(labelled)
        job = create(kube_api, labelled, "Job", "job")
        assert variables(create(kube_api, labelled, "Pod", "pod", job)) == {}
        assert f"WARNING No pod is patched, since MutatingWebhookConfiguration {other}" in webhook.log
        assert "--stand-down=never" in webhook.log
        metrics = webhook.metrics()
        assert "mldiagnostics_webhook_stood_down 1.0" in metrics
        assert 'reviews_total{result="patched"}' not in metrics
        assert 'reviews_total{result="stood_down"}' in metrics


def test_with_never_pods_are_patched_beside_another_injector(
    kube_api: KubeApi, labelled: str, other: str, tmp_path: Path
) -> None:
    with Webhook(kube_api, tmp_path, account=ADMIN, stand_down="never") as webhook:
        webhook.register(labelled)
        job = create(kube_api, labelled, "Job", "job")
        assert "GKE_DIAGON_IDENTIFIER" in variables(create(kube_api, labelled, "Pod", "pod", job))


def test_without_the_right_to_search_it_goes_on_and_warns_once(
    kube_api: KubeApi, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> bool:
        connection = Connection(kube_api.url, kube_api.context(), kube_api.token_file("stranger"))
        async with KubernetesApi(connection) as api:
            stand_down = StandDown(api, OWN, WebhookMetrics())
            for _ in range(2):
                await stand_down.check()
            return stand_down.is_active

    assert not asyncio.run(check())
    assert caplog.text.count("Other injectors are not searched for") == 1
    assert "refused with 403" in caplog.text


class Objects(KubernetesApi):
    """Returns the objects of a collection as a test wants."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)

    async def objects(self, path: str, *, timeout_seconds: float = 10.0) -> list[dict[str, Any]]:
        return self.answers.pop(0) if path.endswith("configurations") else []


def test_pods_are_patched_again_when_the_other_injector_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    stand_down = StandDown(Objects([], [named("managed-diagon")], []), OWN, WebhookMetrics())
    states = []
    for _ in range(3):
        asyncio.run(stand_down.check())
        states.append(stand_down.is_active)
    assert states == [False, True, False]
    assert "Pods are patched again" in caplog.text
