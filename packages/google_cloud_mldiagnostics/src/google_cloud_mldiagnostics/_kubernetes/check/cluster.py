"""All questions about a cluster, in the order in which they are shown."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.check import (
    admission_time,
    certificate,
    configuration,
    identity,
    injectors,
    kind,
    labels,
    operator,
    own_rights,
    policy,
    profiler_port,
    rights_of_accounts,
    variables,
)
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, Question, State, asked
from google_cloud_mldiagnostics._kubernetes.check.workload import find_workload
from google_cloud_mldiagnostics.exceptions import KubernetesError

__all__ = ["check_cluster"]

_SERVER: Final = "API server"
_QUESTIONS: Final = tuple(
    cast(Question, module)
    for module in (
        own_rights,
        kind,
        configuration,
        certificate,
        injectors,
        labels,
        variables,
        rights_of_accounts,
        identity,
        operator,
        policy,
        profiler_port,
    )
)


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
            return [Finding(_SERVER, State.MISSING, f"{connection.server}: {error}", "kubectl cluster-info")]
        case = Case(api, version, namespace, await find_workload(api, namespace, workload) if workload else None)
        answers = await asyncio.gather(*(asked(question, case) for question in _QUESTIONS))
        time = await asked(cast(Question, admission_time), case)  # Alone: the others would make it longer.
        return [Finding(_SERVER, State.OK, version), *answers, time]
