"""The owners of a pod, asked for by name and checked by uid.

An owner exists before its pods, and a GET without a resource version is a consistent read. So nothing is watched, and
no answer is too early. An object of the same name and another uid is not the owner: a caller that invents a reference
learns nothing of objects whose uid it does not know.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.names import LOOKED_UP
from google_cloud_mldiagnostics._kubernetes.workloads import Link, Owner, controller_of
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["LookupFailedError", "Owners", "reason_of"]

_OWNER_SECONDS: Final = 60.0
"""Labels of a workload can change."""
_NAMESPACE_SECONDS: Final = 5.0
_FAILURE_SECONDS: Final = 1.0
_MOST_ANSWERS: Final = 10_000
_MOST_OWNERS: Final = 10
"""The longest chain, that of a LeaderWorkerSet, has four; a cycle of references has no end."""

_Value = TypeVar("_Value")
Metadata = Mapping[str, Any]


class LookupFailedError(Exception):
    """An owner, or a namespace, could not be read.

    Attributes:
        kind: The kind that was looked up, such as JobSet.
        reason: `forbidden`, `missing`, `replaced` or `unavailable`.
    """

    def __init__(self, kind: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason


class Owners:
    """Looks up owners and namespaces; each answer is kept for a while, and asked for once at a time."""

    def __init__(
        self, metadata: Callable[[str], Awaitable[Metadata]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look up nothing yet.

        Args:
            metadata: Returns the metadata of the object of a path; see `KubernetesApi.metadata`.
            clock: Monotonic seconds.
        """
        self._metadata = metadata
        self._owners = _Answers[Metadata](_OWNER_SECONDS, clock)
        self._namespaces = _Answers[Metadata](_NAMESPACE_SECONDS, clock)

    async def chain_of(self, namespace: str, metadata: Metadata) -> list[Link]:
        """Return the owners of an object, its controller first, as far as their kinds are looked up.

        Args:
            namespace: The namespace of the object and its owners.
            metadata: The object's metadata.

        Raises:
            LookupFailedError: One of them could not be read. A part of the chain is of no use, since all pods of a
                workload must have the same variables.
        """
        chain: list[Link] = []
        owner = controller_of(metadata)
        while owner is not None and (owner.group, owner.kind) in LOOKED_UP and len(chain) < _MOST_OWNERS:
            found = await self._owners.get(f"{namespace}/{owner.uid}", self._reader(namespace, owner))
            chain.append(Link(owner, found))
            owner = controller_of(found)
        return chain

    async def namespace(self, name: str) -> Metadata:
        """Return the metadata of a namespace.

        Args:
            name: The name of the namespace.

        Raises:
            LookupFailedError: It could not be read.
        """
        return await self._namespaces.get(
            name, lambda: self._read("Namespace", object_path("", "v1", "namespaces", name))
        )

    def __len__(self) -> int:
        return len(self._owners) + len(self._namespaces)

    def _reader(self, namespace: str, owner: Owner) -> Callable[[], Awaitable[Metadata]]:
        async def read() -> Metadata:
            resource = LOOKED_UP[owner.group, owner.kind]
            found = await self._read(
                owner.kind, object_path(owner.group, owner.version, resource, owner.name, namespace)
            )
            if found.get("uid") != owner.uid:
                message = f"{owner.kind} {namespace}/{owner.name} has another uid than the reference to it"
                raise LookupFailedError(owner.kind, "replaced", message)
            return found

        return read

    async def _read(self, kind: str, path: str) -> Metadata:
        try:
            return await self._metadata(path)
        except KubernetesError as error:
            raise LookupFailedError(kind, reason_of(error), str(error)) from error


def reason_of(error: KubernetesError) -> str:
    """Return why an object could not be read: `forbidden`, `missing` or `unavailable`.

    Args:
        error: The error of the call.
    """
    status = error.status if isinstance(error, KubernetesApiError) else 0
    return {401: "forbidden", 403: "forbidden", 404: "missing"}.get(status, "unavailable")


class _Answers(Generic[_Value]):
    """Answers by key; those that fail are kept, too, but not for long."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, asyncio.Future[_Value]]] = OrderedDict()

    async def get(self, key: str, read: Callable[[], Awaitable[_Value]]) -> _Value:
        """Return the answer of a key; of several callers at the same time, one asks for all."""
        until, answer = self._kept.get(key, (float("-inf"), None))
        if answer is None or (answer.done() and self._clock() >= until):
            answer = asyncio.ensure_future(self._ask(key, read))
            answer.add_done_callback(_retrieve)
            self._kept[key] = self._clock() + _FAILURE_SECONDS, answer
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_ANSWERS:
                self._kept.popitem(last=False)
        return await asyncio.shield(answer)  # A caller whose time is over does not end the question of the others.

    async def _ask(self, key: str, read: Callable[[], Awaitable[_Value]]) -> _Value:
        seconds = _FAILURE_SECONDS
        try:
            answer = await read()
            seconds = self._seconds
            return answer
        finally:
            if key in self._kept:
                self._kept[key] = self._clock() + seconds, self._kept[key][1]

    def __len__(self) -> int:
        return len(self._kept)


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """Read the exception of an answer that no caller waits for any more, which asyncio would log."""
    if not answer.cancelled():
        answer.exception()
