"""The election of the operator that acts, by a Lease of the cluster.

Clocks of two machines are never compared: a holder is taken for dead if its lease has not changed for its duration, as
seen from here.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["Election", "LeaseLostError"]

LEASE_NAME: Final = "mldiagnostics-connection-operator"
_DURATION_SECONDS: Final = 15.0
_RENEW_SECONDS: Final = 2.0
_LOST_SECONDS: Final = 10.0
"""Without a renewal the holder ends, before another one can take its lease."""
_CALL_SECONDS: Final = 5.0
_SHORTEST_CALL_SECONDS: Final = 0.1

_log = logging.getLogger("ml_diagnostics.kubernetes")


class LeaseLostError(Exception):
    """The lease could not be renewed in time, or another process has it: this process must act no longer."""


class Election:
    """One candidate.

    Attributes:
        is_leader: True while it holds the lease.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        identity: str,
        *,
        duration_seconds: float = _DURATION_SECONDS,
        renew_seconds: float = _RENEW_SECONDS,
        lost_seconds: float = _LOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask for nothing yet.

        Args:
            api: The API of the cluster.
            namespace: The namespace of the lease.
            identity: The name of this candidate, which no other process ever has.
            duration_seconds: After so long without a renewal, another candidate takes the lease.
            renew_seconds: How often the lease is renewed, or read.
            lost_seconds: After so long without a renewal the holder gives up; less than the duration.
            clock: Monotonic seconds.
        """
        self.is_leader = False
        self._api = api
        self._namespace = namespace
        self._path = object_path("coordination.k8s.io", "v1", "leases", LEASE_NAME, namespace)
        self._identity = identity
        self._duration_seconds = duration_seconds
        self._renew_seconds = renew_seconds
        self._lost_seconds = lost_seconds
        self._clock = clock
        self._seen_version = ""
        self._seen_at = clock()
        self._answered_at = clock()

    @property
    def silent_seconds(self) -> float:
        """The time since the lease was last renewed, or read by a candidate that waits."""
        return self._clock() - self._answered_at

    async def run(self, became_leader: Callable[[], object]) -> None:
        """Take the lease as soon as it is free, and renew it.

        Args:
            became_leader: Called once, when this candidate has it.

        Raises:
            LeaseLostError: It had the lease, and has it no longer.
        """
        while True:
            was_leader = self.is_leader
            try:
                self.is_leader = await self._attempt()
                self._answered_at = self._clock()
            except KubernetesError as error:
                _log.warning("The lease could not be %s: %s", "renewed" if was_leader else "read", error)
                if was_leader and self.silent_seconds >= self._lost_seconds:
                    self.is_leader = False
                    raise LeaseLostError(f"the lease was not renewed for {self.silent_seconds:.0f} s") from error
            if was_leader and not self.is_leader:
                raise LeaseLostError("another operator has the lease")
            if self.is_leader and not was_leader:
                _log.info("%s leads", self._identity)
                became_leader()
            left = self._lost_seconds - self.silent_seconds if self.is_leader else self._renew_seconds
            await asyncio.sleep(max(_SHORTEST_CALL_SECONDS, min(self._renew_seconds, left)))

    async def release(self) -> None:
        """Give the lease back, so that another candidate takes it at once."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            lease = await self._api.get(self._path, timeout_seconds=_CALL_SECONDS)
            if _holder(lease) == self._identity:
                del lease["spec"]["holderIdentity"]
                await self._api.replace(self._path, lease, timeout_seconds=_CALL_SECONDS)
        except KubernetesError as error:
            _log.warning("The lease was not given back: %s", error)

    async def _attempt(self) -> bool:
        """Return True if this candidate has the lease now."""
        seconds = self._call_seconds()
        try:
            lease = await self._api.get(self._path, timeout_seconds=seconds)
        except KubernetesApiError as error:
            if error.status != 404:
                raise
            return await self._create()
        holder, version = _holder(lease), str(lease.get("metadata", {}).get("resourceVersion", ""))
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock()
        is_free = not holder or self._clock() - self._seen_at >= self._duration_seconds
        if holder != self._identity and not is_free:
            return False
        changed = {**lease, "spec": self._spec(lease.get("spec") or {}, holder)}
        try:
            renewed = await self._api.replace(self._path, changed, timeout_seconds=self._call_seconds())
        except KubernetesApiError as error:
            if error.status == 409:  # Another process was quicker; a holder reads it again soon.
                return holder == self._identity and self.is_leader
            raise
        self._seen_version, self._seen_at = str(renewed["metadata"]["resourceVersion"]), self._clock()
        return True

    def _call_seconds(self) -> float:
        """Return how long a call may take: a holder must know in time that it has lost the lease."""
        left = self._lost_seconds - self.silent_seconds
        return max(_SHORTEST_CALL_SECONDS, min(_CALL_SECONDS, left)) if self.is_leader else _CALL_SECONDS

    async def _create(self) -> bool:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
            "spec": self._spec({}, ""),
        }
        try:
            await self._api.create(self._path.rpartition("/")[0], lease, timeout_seconds=_CALL_SECONDS)
        except KubernetesApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    def _spec(self, before: Mapping[str, Any], holder: str) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration_seconds)),
            "renewTime": now,
        }
        if holder != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": int(before.get("leaseTransitions") or 0) + 1}
        return spec


def _holder(lease: Mapping[str, Any]) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
