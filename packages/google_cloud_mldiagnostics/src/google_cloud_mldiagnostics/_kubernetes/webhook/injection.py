"""The decision on one pod: which operations give it its variables, or why it gets none."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER, METADATA
from google_cloud_mldiagnostics._kubernetes.owners import LookupFailedError, Owners
from google_cloud_mldiagnostics._kubernetes.patches import Operation, patch_of, patch_of_ephemeral
from google_cloud_mldiagnostics._kubernetes.reviews import PodRequest
from google_cloud_mldiagnostics._kubernetes.values import variables_of
from google_cloud_mldiagnostics._kubernetes.webhook.warnings import Warnings
from google_cloud_mldiagnostics._kubernetes.workloads import has_label, workload_of

__all__ = ["Injection", "Result"]

_LOOKUPS_SECONDS: Final = 1.0
"""For all look-ups of a review: the API server waits for two seconds, and admits the pod then."""
_ANY: Final = dict.fromkeys((IDENTIFIER, METADATA), "")


class Result(enum.Enum):
    """The result of a review."""

    PATCHED = "patched"
    PRESENT = "present"
    """Each container has both variables."""
    UNLABELLED = "unlabelled"
    """Neither the namespace nor the pod nor an owner of it asks for them."""
    NO_WORKLOAD = "no_workload"
    """No owner of the pod is of a supported kind."""
    LOOKUP_FAILED = "lookup_failed"
    MALFORMED = "malformed"
    ERROR = "error"
    """A bug of ours."""
    STOOD_DOWN = "stood_down"
    """Another injector sets the variables."""


class Injection:
    """Decides on pods."""

    def __init__(self, owners: Owners, cluster: str, has_stood_down: Callable[[], bool] = lambda: False) -> None:
        """Look up nothing yet.

        Args:
            owners: Looks up owners and namespaces.
            cluster: The cluster as `projects/P/locations/L/clusters/C`; empty if it is not known.
            has_stood_down: Returns True while another injector sets the variables.
        """
        self._owners = owners
        self._cluster = cluster
        self._has_stood_down = has_stood_down
        self._warnings = Warnings()

    async def decide(self, request: PodRequest) -> tuple[Result, list[Operation]]:
        """Return the result of a review, and the operations on the pod: none but for a pod that is patched.

        Args:
            request: The request to create a pod, or to add ephemeral containers to one.
        """
        if self._has_stood_down():
            return Result.STOOD_DOWN, []
        if not self._patch(request, _ANY):
            return Result.PRESENT, []
        metadata = request.pod.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        try:
            return await asyncio.wait_for(self._look_up(request, metadata), _LOOKUPS_SECONDS)
        except LookupFailedError as error:
            self._warnings.warn(error.kind, f"A pod gets no variables: {error}")
        except asyncio.TimeoutError:
            self._warnings.warn(
                "slow", f"A pod gets no variables: the API server did not answer within {_LOOKUPS_SECONDS:g} s"
            )
        return Result.LOOKUP_FAILED, []

    async def _look_up(self, request: PodRequest, metadata: Mapping[str, Any]) -> tuple[Result, list[Operation]]:
        chain = await self._owners.chain_of(request.namespace, metadata)
        workload = workload_of(chain)
        if workload is None:
            return Result.NO_WORKLOAD, []
        is_labelled = has_label(metadata) or any(has_label(link.metadata) for link in chain)
        if not is_labelled and not has_label(await self._owners.namespace(request.namespace)):
            return Result.UNLABELLED, []
        variables = variables_of(workload, cluster=self._cluster, namespace=request.namespace)
        return Result.PATCHED, self._patch(request, variables)

    def _patch(self, request: PodRequest, variables: Mapping[str, str]) -> list[Operation]:
        if request.old_pod is None:
            return patch_of(request.pod, variables)
        return patch_of_ephemeral(request.pod, request.old_pod, variables)
