"""Questions about what is installed: the kind of objects, the webhook, its certificate, the operator, their rights."""

from __future__ import annotations

import asyncio
import base64
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cryptography import x509

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import Finding, State
from google_cloud_mldiagnostics._kubernetes.connections.election import LEASE_NAME
from google_cloud_mldiagnostics._kubernetes.connections.resource import custom_resource_definition
from google_cloud_mldiagnostics._kubernetes.names import (
    CONNECTION_GROUP,
    CONNECTIONS,
    LOOKED_UP,
    NAMESPACE,
    WEBHOOK,
    WEBHOOK_CERTIFICATE,
    WEBHOOK_CONFIGURATION,
)
from google_cloud_mldiagnostics._kubernetes.webhook.standing_down import other_injectors
from google_cloud_mldiagnostics.exceptions import KubernetesApiError

__all__ = ["check_certificate", "check_kind", "check_lease", "check_other_injectors", "check_rights", "check_webhook"]

OPERATOR: Final = "mldiagnostics-connection-operator"
INSTALL_WEBHOOK: Final = f"helm install {WEBHOOK} --namespace={NAMESPACE} --create-namespace deploy/charts/{WEBHOOK}"
INSTALL_OPERATOR: Final = f"helm install {OPERATOR} --namespace={NAMESPACE} --create-namespace deploy/charts/{OPERATOR}"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_LEASE_SECONDS: Final = 3.0
"""The operator renews its lease every 2 s. Two reads need no clock of another machine."""


async def check_kind(api: KubernetesApi) -> Finding:
    """Return whether objects of the operator can be created, as this version knows them."""
    question, ours = "kind of connection objects", custom_resource_definition()
    name = ours["metadata"]["name"]
    path = object_path("apiextensions.k8s.io", "v1", "customresourcedefinitions", name)
    remedy = f"kubectl apply -f deploy/charts/{OPERATOR}/crds/{CONNECTIONS}.yaml"
    found = await _existing(api, path)
    if found is None:
        return Finding(question, State.MISSING, f"{name} is not installed", remedy)
    conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}
    if conditions.get("Established") != "True":
        return Finding(question, State.MISSING, f"{name} is not served", f"kubectl describe crd {name}")
    if _comparable(found["spec"]["versions"]) != _comparable(ours["spec"]["versions"]):
        return Finding(question, State.MISSING, f"{name} is of another version than this command", remedy)
    return Finding(question, State.OK, name)


async def check_webhook(api: KubernetesApi) -> Finding:
    """Return whether the API server asks the webhook, and would admit a pod without its answer."""
    question = "webhook configuration"
    found = await _existing(api, f"{_ADMISSION}/mutatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}")
    if found is None:
        return Finding(question, State.MISSING, f"{WEBHOOK_CONFIGURATION} is not installed", INSTALL_WEBHOOK)
    strict = [entry["name"] for entry in found.get("webhooks", ()) if entry.get("failurePolicy") != "Ignore"]
    if strict or not found.get("webhooks"):
        detail = f"without an answer no pod starts (failurePolicy of {', '.join(strict)})" if strict else "it is empty"
        return Finding(question, State.MISSING, detail, INSTALL_WEBHOOK.replace("install", "upgrade", 1))
    return Finding(question, State.OK, f"{len(found['webhooks'])} entries, failurePolicy Ignore")


async def check_certificate(api: KubernetesApi) -> Finding:
    """Return whether the API server trusts the certificate of the webhook."""
    question = "webhook certificate"
    found = await _existing(api, f"{_ADMISSION}/mutatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}")
    if found is None:
        return Finding(question, State.UNKNOWN, "there is no webhook configuration")
    remedy = f"kubectl -n {NAMESPACE} rollout restart deployment {WEBHOOK}"
    bundles = {entry["clientConfig"].get("caBundle", "") for entry in found.get("webhooks", ())}
    if "" in bundles:
        return Finding(question, State.MISSING, "an entry has no caBundle", remedy)
    authorities = [each for bundle in bundles for each in x509.load_pem_x509_certificates(base64.b64decode(bundle))]
    now = datetime.datetime.now(datetime.timezone.utc)
    valid = [each for each in authorities if each.not_valid_after_utc > now]
    if not valid:
        return Finding(question, State.MISSING, "the certificates of the caBundle have expired", remedy)
    try:
        secret = await api.get(object_path("", "v1", "secrets", WEBHOOK_CERTIFICATE, NAMESPACE))
        leaf = x509.load_pem_x509_certificates(base64.b64decode(secret["data"]["tls.crt"]))[0]
    except (KubernetesApiError, KeyError, ValueError) as error:
        return Finding(question, State.UNKNOWN, f"the caBundle is valid; the Secret cannot be read ({error})")
    if leaf.not_valid_after_utc <= now:
        return Finding(question, State.MISSING, f"it expired on {leaf.not_valid_after_utc:%Y-%m-%d}", remedy)
    if not any(_has_issued(authority, leaf) for authority in valid):
        return Finding(question, State.MISSING, "it is of another authority than those of the caBundle", remedy)
    return Finding(question, State.OK, f"valid until {leaf.not_valid_after_utc:%Y-%m-%d}")


async def check_other_injectors(api: KubernetesApi) -> Finding:
    """Return whether another program gives pods the same variables."""
    question = "other injectors"
    configurations = await api.objects(f"{_ADMISSION}/mutatingwebhookconfigurations")
    try:
        policies = await api.objects(f"{_ADMISSION}/mutatingadmissionpolicies")
    except KubernetesApiError as error:
        if error.status != 404:
            raise
        policies = []
    found = other_injectors(configurations, policies, WEBHOOK_CONFIGURATION)
    if not found:
        return Finding(question, State.OK, "none")
    detail = f"{' and '.join(found)} sets the same variables, so this webhook stands down"
    return Finding(question, State.MISSING, detail, f"helm uninstall {WEBHOOK} -n {NAMESPACE}")


async def check_lease(api: KubernetesApi, seconds: float = _LEASE_SECONDS) -> Finding:
    """Return whether an operator acts: whether its lease changes.

    Args:
        api: The API of the cluster.
        seconds: The time between two reads of the lease.
    """
    question, path = "operator", object_path("coordination.k8s.io", "v1", "leases", LEASE_NAME, NAMESPACE)
    first = await _existing(api, path)
    if first is None:
        return Finding(question, State.MISSING, "no operator has ever run", INSTALL_OPERATOR)
    await asyncio.sleep(seconds)
    second = await api.get(path)
    holder = second["spec"].get("holderIdentity")
    if holder and first["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]:
        return Finding(question, State.OK, f"{holder} acts")
    remedy = f"kubectl -n {NAMESPACE} logs deployment/{OPERATOR}"
    return Finding(question, State.MISSING, "its lease is not renewed: it does not run", remedy)


async def check_rights(api: KubernetesApi) -> Finding:
    """Return whether the accounts of the webhook and the operator have their rights."""
    question = "rights of both accounts"
    wanted = [(WEBHOOK, *right) for right in _webhook_rights()] + [(OPERATOR, *right) for right in _operator_rights()]
    answers = await asyncio.gather(*(_may(api, account, *right) for account, *right in wanted))
    missing = [
        f"{account} {verb} {resource}"
        for (account, _, resource, verb), may in zip(wanted, answers, strict=True)
        if not may
    ]
    if not missing:
        return Finding(question, State.OK, f"all {len(wanted)}")
    remedy = INSTALL_WEBHOOK if any(WEBHOOK in each for each in missing) else INSTALL_OPERATOR
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return Finding(question, State.MISSING, f"not allowed: {', '.join(missing[:3])}{more}", remedy)


def _webhook_rights() -> list[tuple[str, str, str]]:
    return [("", "namespaces", "get"), *((group, resource, "get") for (group, _), resource in LOOKED_UP.items())]


def _operator_rights() -> list[tuple[str, str, str]]:
    verbs = [(CONNECTION_GROUP, CONNECTIONS, verb) for verb in ("list", "watch", "patch", "delete")]
    return [*verbs, (CONNECTION_GROUP, f"{CONNECTIONS}/status", "patch"), ("", "pods", "get")]


async def _may(api: KubernetesApi, account: str, group: str, resource: str, verb: str) -> bool:
    name, _, subresource = resource.partition("/")
    attributes = {"group": group, "resource": name, "subresource": subresource, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{NAMESPACE}:{account}", "resourceAttributes": attributes},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


async def _existing(api: KubernetesApi, path: str) -> dict[str, Any] | None:
    try:
        return await api.get(path)
    except KubernetesApiError as error:
        if error.status != 404:
            raise
        return None


def _comparable(value: object) -> object:
    """Return a part of a definition without what API servers add or leave out."""
    if isinstance(value, Mapping):
        return {key: _comparable(each) for key, each in value.items() if key != "x-kubernetes-validations"}
    return (
        [_comparable(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
    )


def _has_issued(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # Each kind of key has its own errors.
        return False
    return True
