"""All questions about a cluster, and those that are about the cluster itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.check import admission, installation
from google_cloud_mldiagnostics._kubernetes.check.findings import Finding, State, asked
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["check_cluster"]

_POLICY_VERSION: Final = (1, 36)
_IDENTITY: Final = "iam.gke.io/gcp-service-account"


async def check_cluster(connection: Connection, namespace: str, workload: str) -> list[Finding]:
    """Return the answers to all questions; only the first if the API server does not answer.

    Args:
        connection: The connection to the cluster.
        namespace: The namespace of the workloads.
        workload: KIND/NAME of one of them; empty for none.

    Raises:
        KubernetesConfigurationError: The workload is of no supported kind.
        KubernetesApiError: There is no such workload.
    """
    async with KubernetesApi(connection) as api:
        try:
            version = await api.version()
        except KubernetesError as error:
            remedy = "kubectl cluster-info"
            return [Finding("API server", State.MISSING, f"{connection.server}: {error}", remedy)]
        found = await admission.find_workload(api, namespace, workload) if workload else None
        questions: dict[str, Callable[[], Awaitable[Finding]]] = {
            "kind of connection objects": partial(installation.check_kind, api),
            "webhook configuration": partial(installation.check_webhook, api),
            "webhook certificate": partial(installation.check_certificate, api),
            "other injectors": partial(installation.check_other_injectors, api),
            "labels": partial(admission.check_labels, api, namespace, found),
            "variables of a pod": partial(admission.check_variables, api, namespace, found),
            "rights of both accounts": partial(installation.check_rights, api),
            "identity of the operator": partial(_check_identity, api),
            "operator": partial(installation.check_lease, api),
        }
        answers = await asyncio.gather(*(asked(question, answer) for question, answer in questions.items()))
        timed = await asked("time to admit a pod", lambda: admission.check_admission_time(api, namespace))
        return [Finding("API server", State.OK, version), *answers, timed, _check_policy(version), _PORT]


async def _check_identity(api: KubernetesApi) -> Finding:
    question = "identity of the operator"
    path = object_path("", "v1", "serviceaccounts", installation.OPERATOR, NAMESPACE)
    try:
        account = await api.metadata(path, timeout_seconds=10.0)
    except KubernetesApiError as error:
        if error.status != 404:
            raise
        return Finding(question, State.MISSING, "its service account is not there", installation.INSTALL_OPERATOR)
    identity = (account.get("annotations") or {}).get(_IDENTITY)
    if identity:
        return Finding(question, State.OK, str(identity))
    detail = "its service account has no Workload Identity annotation: it may not be able to read profiles"
    remedy = (
        f"kubectl -n {NAMESPACE} annotate serviceaccount {installation.OPERATOR} {_IDENTITY}=NAME@PROJECT.iam."
        "gserviceaccount.com (with roles/storage.objectViewer)"
    )
    return Finding(question, State.UNKNOWN, detail, remedy)


def _check_policy(version: str) -> Finding:
    """Return whether this cluster needs no webhook: a policy does the same where it knows enough."""
    question = "policy instead of the webhook"
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < _POLICY_VERSION:
        return Finding(question, State.OK, f"not possible: it needs Kubernetes 1.36, this is {version}")
    detail = (
        "possible. It knows neither labels on workloads alone, nor their labels and creation time, nor a TrainJob above"
        " a JobSet or a RayJob above a RayCluster"
    )
    return Finding(question, State.OK, detail, "mldiagnostics kubernetes policy --cluster C | kubectl apply -f -")


_PORT: Final = Finding(
    "profiler port of pods",
    State.UNKNOWN,
    "only from inside the cluster. Whoever reaches it can profile the pod: admit only the operator by a NetworkPolicy",
)
