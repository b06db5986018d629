"""The question whether the API server trusts the certificate of the webhook."""

from __future__ import annotations

import base64
import datetime
from typing import Any, Final

from cryptography import x509

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.configuration import CONFIGURATION_PATH
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State, existing
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, WEBHOOK, WEBHOOK_CERTIFICATE
from google_cloud_mldiagnostics.exceptions import KubernetesApiError

__all__ = ["QUESTION", "check"]

QUESTION: Final = "webhook certificate"
_REMEDY: Final = f"kubectl -n {NAMESPACE} rollout restart deployment {WEBHOOK}"


async def check(case: Case) -> Finding:
    """Return whether the caBundle is valid, and has issued the certificate of the Secret."""
    found = await existing(case.api, CONFIGURATION_PATH)
    if found is None:
        return Finding(QUESTION, State.UNKNOWN, "there is no webhook configuration")
    now = datetime.datetime.now(datetime.timezone.utc)
    bundles = {entry["clientConfig"].get("caBundle", "") for entry in found.get("webhooks") or ()}
    if "" in bundles:
        return Finding(QUESTION, State.MISSING, "an entry has no caBundle", _REMEDY)
    authorities = [each for bundle in bundles for each in x509.load_pem_x509_certificates(base64.b64decode(bundle))]
    valid = [each for each in authorities if each.not_valid_after_utc > now]
    if not valid:
        return Finding(QUESTION, State.MISSING, "the certificates of the caBundle have expired", _REMEDY)
    try:
        secret = await existing(case.api, object_path("", "v1", "secrets", WEBHOOK_CERTIFICATE, NAMESPACE))
        if secret is None:
            detail = f"the caBundle is valid; there is no Secret {WEBHOOK_CERTIFICATE} to compare it with"
            return Finding(QUESTION, State.UNKNOWN, detail)
        leaf = _leaf(secret)
    except (KubernetesApiError, KeyError, ValueError) as error:
        return Finding(QUESTION, State.UNKNOWN, f"the caBundle is valid; the Secret cannot be read ({error})")
    if leaf.not_valid_after_utc <= now:
        return Finding(QUESTION, State.MISSING, f"it expired on {leaf.not_valid_after_utc:%Y-%m-%d}", _REMEDY)
    if not any(_has_issued(authority, leaf) for authority in valid):
        return Finding(QUESTION, State.MISSING, "it is of another authority than those of the caBundle", _REMEDY)
    return Finding(QUESTION, State.OK, f"valid until {leaf.not_valid_after_utc:%Y-%m-%d}")


def _leaf(secret: dict[str, Any]) -> x509.Certificate:
    return x509.load_pem_x509_certificates(base64.b64decode(secret["data"]["tls.crt"]))[0]


def _has_issued(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # Each kind of key has its own errors.
        return False
    return True
