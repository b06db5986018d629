"""The certificate of a webhook without cert-manager: kept in a Secret, and trusted by the webhook's configuration."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.names import WEBHOOK, WEBHOOK_CERTIFICATE, WEBHOOK_CONFIGURATION
from google_cloud_mldiagnostics._kubernetes.webhook.authority import SignedState, first_state, renewed_state
from google_cloud_mldiagnostics._kubernetes.webhook.certificates import Pair
from google_cloud_mldiagnostics._kubernetes.webhook.warnings import Warnings
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["SelfSigned"]

_MOST_TRIES: Final = 5
"""Each ends in a conflict only if another replica has just made the same step."""

_log = logging.getLogger("ml_diagnostics.kubernetes")


class SelfSigned:
    """A pair that all replicas share.

    Attributes:
        check_seconds: How often it is to be read.
    """

    check_seconds = 30.0

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        *,
        configuration: str = WEBHOOK_CONFIGURATION,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read nothing yet.

        Args:
            api: The API of the cluster.
            namespace: The namespace of the Secret and of the Service.
            configuration: The name of the MutatingWebhookConfiguration.
            clock: Seconds since 1970.
        """
        self._api = api
        self._namespace = namespace
        self._configuration = object_path(
            "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", configuration
        )
        self._clock = clock
        self._warnings = Warnings()
        # Localhost is for `kubectl port-forward`.
        service = f"{WEBHOOK}.{namespace}"
        self._names = (f"{service}.svc", f"{service}.svc.cluster.local", service, "localhost")

    async def pair(self) -> Pair:
        """Return the pair of all replicas; make it, renew it and have it trusted if that is due.

        Raises:
            KubernetesError: The Secret cannot be read or written.
        """
        for number in range(1, _MOST_TRIES + 1):
            try:
                return await self._pair()
            except KubernetesApiError as error:
                if error.status != 409 or number == _MOST_TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _pair(self) -> Pair:
        state, version = await self._state()
        is_trusted = await self._trust(state)
        renewed = renewed_state(state, self._clock(), self._names, is_trusted=is_trusted)
        if renewed != state:
            change = {"metadata": {"resourceVersion": version}, "data": renewed.data()}
            await self._api.patch(self._secret, change)
            _log.info("The certificate of the webhook, or its authority, is renewed")
            if renewed.bundle != state.bundle:
                await self._trust(renewed)
        return renewed.leaf

    @property
    def _secret(self) -> str:
        return object_path("", "v1", "secrets", WEBHOOK_CERTIFICATE, self._namespace)

    async def _state(self) -> tuple[SignedState, str]:
        """Return the state that the Secret has, and its version; create it if it is missing."""
        try:
            secret = await self._api.get(self._secret)
        except KubernetesApiError as error:
            if error.status != 404:
                raise
            state = first_state(self._clock(), self._names)
            document = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "Opaque",
                "metadata": {"name": WEBHOOK_CERTIFICATE},
                "data": {key: value for key, value in state.data().items() if value},
            }
            secret = await self._api.create(self._secret.rpartition("/")[0], document)
            _log.info("The certificate of the webhook is in the Secret %s", WEBHOOK_CERTIFICATE)
        version, data = str(secret["metadata"]["resourceVersion"]), secret.get("data") or {}
        try:
            return SignedState.read(data), version
        except ValueError as error:
            if data:  # The chart makes an empty one, so that this account needs no right to create Secrets.
                _log.warning("The Secret %s is not valid (%s): a new authority replaces it", WEBHOOK_CERTIFICATE, error)
            state = first_state(self._clock(), self._names)
            change = {"metadata": {"resourceVersion": version}, "data": state.data()}
            secret = await self._api.patch(self._secret, change)
            return state, str(secret["metadata"]["resourceVersion"])

    async def _trust(self, state: SignedState) -> bool:
        """Have the API server trust the bundle; return False if that is not possible, and warn."""
        bundle = base64.b64encode(state.bundle).decode()
        try:
            document = await self._api.get(self._configuration)
            entries = document.get("webhooks") or []
            if all(_bundle_of(entry) == bundle for entry in entries):
                return True
            change = {
                # A list is replaced as a whole, so no one else may have changed it meanwhile.
                "metadata": {"resourceVersion": document["metadata"]["resourceVersion"]},
                "webhooks": [
                    {**entry, "clientConfig": {**entry["clientConfig"], "caBundle": bundle}} for entry in entries
                ],
            }
            await self._api.patch(self._configuration, change)
            return True
        except KubernetesApiError as error:
            if error.status == 409:
                raise
            reason = str(error)
        except KubernetesError as error:
            reason = str(error)
        self._warnings.warn(
            "trust", f"The API server may not trust the webhook, and then pods get no variables: {reason}"
        )
        return False


def _bundle_of(entry: dict[str, Any]) -> object:
    return entry["clientConfig"].get("caBundle")
