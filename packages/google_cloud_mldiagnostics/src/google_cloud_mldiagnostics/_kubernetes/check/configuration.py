"""The question whether the API server asks the webhook, and starts pods without its answer."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import INSTALL_WEBHOOK, Case, Finding, State, existing
from google_cloud_mldiagnostics._kubernetes.names import WEBHOOK_CONFIGURATION

__all__ = ["CONFIGURATION_PATH", "QUESTION", "check"]

QUESTION: Final = "webhook configuration"
CONFIGURATION_PATH: Final = object_path(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", WEBHOOK_CONFIGURATION
)


async def check(case: Case) -> Finding:
    """Return whether the configuration is there, and ignores a webhook that does not answer."""
    found = await existing(case.api, CONFIGURATION_PATH)
    if found is None:
        return Finding(QUESTION, State.MISSING, f"{WEBHOOK_CONFIGURATION} is not installed", INSTALL_WEBHOOK)
    entries = found.get("webhooks") or []
    strict = [entry["name"] for entry in entries if entry.get("failurePolicy") != "Ignore"]
    if strict or not entries:
        detail = f"without an answer no pod starts (failurePolicy of {', '.join(strict)})" if strict else "it is empty"
        return Finding(QUESTION, State.MISSING, detail, INSTALL_WEBHOOK.replace("install", "upgrade", 1))
    return Finding(QUESTION, State.OK, f"{len(entries)} entries, failurePolicy Ignore")
