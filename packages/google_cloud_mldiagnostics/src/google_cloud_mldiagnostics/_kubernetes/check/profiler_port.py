"""The question who can reach the profiler servers of pods. It is not tried: a request would profile the job."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State

__all__ = ["QUESTION", "check"]

QUESTION: Final = "profiler port of pods"


async def check(case: Case) -> Finding:
    """Return what the user has to know of it."""
    detail = (
        "not tried: it is reached only from inside the cluster. Whoever reaches it can profile the pod: admit only the"
        " operator by a NetworkPolicy"
    )
    return Finding(QUESTION, State.UNKNOWN, detail)
