"""Other injectors of the cluster, such as GKE's managed one: two would race for the variables of each pod."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.names import POLICY
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["StandDown", "other_injectors"]

_CHECK_SECONDS: Final = 60.0
_ROOT: Final = "/apis/admissionregistration.k8s.io/v1"
_OF_INJECTORS: Final = ("mldiagnostics", "diagon")
"""One of these is in the name, or in that of the Service, of each injector of these variables."""

_log = logging.getLogger("ml_diagnostics.kubernetes")


def other_injectors(
    configurations: Iterable[Mapping[str, Any]], policies: Iterable[Mapping[str, Any]], own: str
) -> list[str]:
    """Return the kinds and names of the injectors beside our own.

    Args:
        configurations: The MutatingWebhookConfigurations of the cluster.
        policies: Its MutatingAdmissionPolicies.
        own: The name of our own configuration.
    """
    webhooks = [
        f"MutatingWebhookConfiguration {name}"
        for name, document in _by_name(configurations)
        if name != own and any(part in text for text in (name, *_services(document)) for part in _OF_INJECTORS)
    ]
    return webhooks + [f"MutatingAdmissionPolicy {name}" for name, _ in _by_name(policies) if name == POLICY]


class StandDown:
    """Searches for other injectors every minute; while there is one, no pod is patched.

    Attributes:
        is_active: True while there is another injector.
    """

    def __init__(self, api: KubernetesApi, own: str, metrics: WebhookMetrics) -> None:
        """Search for nothing yet.

        Args:
            api: The API of the cluster.
            own: The name of our own configuration.
            metrics: The metrics of the webhook.
        """
        self._api = api
        self._own = own
        self._metrics = metrics
        self._is_forbidden = False
        self.is_active = False

    async def watch(self) -> None:
        """Search every minute, until it is cancelled."""
        while True:
            try:
                await self.check()
            except KubernetesError as error:  # What was found last is still the best guess.
                _log.info("Other injectors are not known: %s", error)
            except Exception:
                _log.exception("Other injectors are not known: a bug in the webhook")
            await asyncio.sleep(_CHECK_SECONDS)

    async def check(self) -> None:
        """Search once.

        Raises:
            KubernetesError: The API server did not answer.
        """
        configurations = await self._objects("mutatingwebhookconfigurations")
        policies = await self._objects("mutatingadmissionpolicies")
        found = other_injectors(configurations, policies, self._own)
        self._metrics.stood_down.set(bool(found))
        if found and not self.is_active:
            _log.warning(
                "No pod is patched, since %s sets the same variables. Uninstall one of both, or start this one with "
                "--stand-down=never",
                " and ".join(found),
            )
        elif self.is_active and not found:
            _log.warning("Pods are patched again: there is no other injector any more")
        self.is_active = bool(found)

    async def _objects(self, resource: str) -> list[dict[str, Any]]:
        """Return all objects of a kind; none if the cluster does not know it, or this account may not list it."""
        try:
            return await self._api.objects(f"{_ROOT}/{resource}")
        except KubernetesApiError as error:
            if error.status not in (401, 403, 404):
                raise
            if error.status != 404 and not self._is_forbidden:
                self._is_forbidden = True
                _log.warning(
                    "Other injectors are not searched for, as GKE's managed one: %s. Give this account the right to "
                    "list them, or start the webhook with --stand-down=never",
                    error,
                )
            return []


def _by_name(documents: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(str((document.get("metadata") or {}).get("name", "")), document) for document in documents]


def _services(configuration: Mapping[str, Any]) -> list[str]:
    clients = (entry.get("clientConfig") or {} for entry in configuration.get("webhooks") or ())
    return [str((client.get("service") or {}).get("name", "")) for client in clients]
