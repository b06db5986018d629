"""Findings: the answer to one question about a cluster."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["Finding", "State", "asked"]


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


async def asked(question: str, answer: Callable[[], Awaitable[Finding]]) -> Finding:
    """Return the answer to a question; one that the API server refuses has no answer.

    Args:
        question: The question.
        answer: Finds the answer.
    """
    try:
        return await answer()
    except KubernetesApiError as error:
        remedy = "kubectl auth can-i --list" if error.status in (401, 403) else ""
        return Finding(question, State.UNKNOWN, str(error), remedy)
    except KubernetesError as error:
        return Finding(question, State.UNKNOWN, str(error))
