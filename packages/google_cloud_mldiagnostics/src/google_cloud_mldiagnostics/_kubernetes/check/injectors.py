"""The question whether another program gives pods the same variables."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, WEBHOOK, WEBHOOK_CONFIGURATION
from google_cloud_mldiagnostics._kubernetes.webhook.standing_down import other_injectors
from google_cloud_mldiagnostics.exceptions import KubernetesApiError

__all__ = ["QUESTION", "check"]

QUESTION: Final = "other injectors"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"


async def check(case: Case) -> Finding:
    """Return whether there is another injector, for which ours stands down."""
    configurations = await case.api.objects(f"{_ADMISSION}/mutatingwebhookconfigurations")
    try:
        policies = await case.api.objects(f"{_ADMISSION}/mutatingadmissionpolicies")
    except KubernetesApiError as error:
        if error.status != 404:  # The API server is older than policies.
            raise
        policies = []
    found = other_injectors(configurations, policies, WEBHOOK_CONFIGURATION)
    if not found:
        return Finding(QUESTION, State.OK, "none")
    detail = f"{' and '.join(found)} sets the same variables, so this webhook stands down"
    return Finding(QUESTION, State.MISSING, detail, f"helm uninstall {WEBHOOK} -n {NAMESPACE}")
