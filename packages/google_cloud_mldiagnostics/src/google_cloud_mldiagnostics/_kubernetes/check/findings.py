"""Findings: the answer to one question about a cluster, and what all questions know."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, OPERATOR, WEBHOOK
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["INSTALL_OPERATOR", "INSTALL_WEBHOOK", "Case", "Finding", "Question", "State", "asked", "existing"]

INSTALL_WEBHOOK: Final = f"helm install {WEBHOOK} --namespace={NAMESPACE} --create-namespace deploy/charts/{WEBHOOK}"
INSTALL_OPERATOR: Final = f"helm install {OPERATOR} --namespace={NAMESPACE} --create-namespace deploy/charts/{OPERATOR}"


class State(enum.Enum):
    """The state of what a question asks for."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "cannot tell"


class Finding(NamedTuple):
    """One answer.

    Attributes:
        question: The question.
        state: The answer.
        detail: The details.
        remedy: The command that fixes it; empty if nothing is missing.
    """

    question: str
    state: State
    detail: str
    remedy: str = ""


class Case(NamedTuple):
    """The cluster that is checked.

    Attributes:
        api: The API of the cluster.
        version: The version of its API server, such as v1.31.0.
        namespace: The namespace of the workloads.
        workload: One of them, as the API server returns it; None for none.
    """

    api: KubernetesApi
    version: str
    namespace: str
    workload: Mapping[str, Any] | None


class Question(Protocol):
    """A module of this package that answers a question.

    Attributes:
        QUESTION: The question, as the user reads it.
    """

    QUESTION: str

    async def check(self, case: Case) -> Finding:
        """Return the answer.

        Raises:
            KubernetesError: The API server refused, or did not answer.
        """
        ...


async def asked(question: Question, case: Case) -> Finding:
    """Return the answer to a question; none where the API server refuses, or has an object of an unexpected form.

    Args:
        question: The question.
        case: The cluster.
    """
    try:
        return await question.check(case)
    except KubernetesApiError as error:
        remedy = "kubectl auth can-i --list" if error.status in (401, 403) else ""
        return Finding(question.QUESTION, State.UNKNOWN, str(error), remedy)
    except KubernetesError as error:
        return Finding(question.QUESTION, State.UNKNOWN, str(error))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return Finding(question.QUESTION, State.UNKNOWN, f"an object has an unexpected form ({error!r:.200})")


async def existing(api: KubernetesApi, path: str) -> dict[str, Any] | None:
    """Return an object; None if there is none.

    Args:
        api: The API of the cluster.
        path: The path of the object.

    Raises:
        KubernetesError: The API server refused, or did not answer.
    """
    try:
        return await api.get(path)
    except KubernetesApiError as error:
        if error.status != 404:
            raise
        return None
