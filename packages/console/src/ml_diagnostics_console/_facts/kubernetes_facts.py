"""Pods, events, nodes and queues of a job, as Kubernetes reports them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KubernetesFacts"]


@dataclass(frozen=True, slots=True)
class KubernetesFacts:
    """What a cluster reports of a job."""

    context: str
