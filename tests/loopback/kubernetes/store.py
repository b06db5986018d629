"""The objects of the loopback cluster."""

import copy
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

from .kinds import Kind
from .selectors import fields_match, labels_match

Resource = dict[str, Any]
_Key = tuple[str, str, str]
_REMEMBERED = 1000
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Change:
    """A change of an object.

    Attributes:
        kind: ADDED, MODIFIED or DELETED.
        version: The resourceVersion of the change.
        resource: The new object, or the deleted one.
    """

    kind: str
    version: int
    resource: Resource


class ObjectStore:
    """Objects by kind, namespace and name. Safe to use from many threads; returned objects are copies.

    Args:
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._objects: dict[_Key, Resource] = {}
        self._version = 1
        self._changes: deque[tuple[_Key, Change]] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Condition()

    @property
    def version(self) -> str:
        """The resourceVersion of the latest change."""
        return str(self._version)

    def get(self, kind: Kind, namespace: str, name: str) -> Resource:
        """Return an object.

        Raises:
            ApiError: The object does not exist.
        """
        with self._lock:
            return copy.deepcopy(self._find(kind, namespace, name))

    def select(self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "") -> list[Resource]:
        """Return the objects of a kind that match selectors, sorted; an empty namespace means all namespaces."""
        with self._lock:
            return [
                copy.deepcopy(found)
                for (plural, where, _), found in sorted(self._objects.items())
                if plural == kind.plural and where == (namespace or where) and _is_selected(found, labels, fields)
            ]

    def changes(
        self, kind: Kind, namespace: str, labels: str, fields: str, after: int, *, wait_seconds: float
    ) -> list[Change]:
        """Return the changes after a resourceVersion, oldest first; wait up to `wait_seconds` for the first."""
        with self._lock:
            if self._version <= after:
                self._lock.wait(wait_seconds)
            return [
                change
                for (plural, where, _), change in self._changes
                if change.version > after
                and (plural, where) == (kind.plural, namespace or where)
                and _is_selected(change.resource, labels, fields)
            ]

    def everything_in(self, namespace: str) -> list[Resource]:
        """Return the objects of all kinds in a namespace."""
        with self._lock:
            return [copy.deepcopy(found) for (_, where, _), found in self._objects.items() if where == namespace]

    def create(self, kind: Kind, namespace: str, resource: Resource, *, is_dry: bool = False) -> Resource:
        """Store a new object, except in a dry run; return it.

        Raises:
            ApiError: The name exists or is invalid.
        """
        with self._lock:
            metadata = dict(resource.get("metadata") or {})
            name = metadata.get("name") or metadata.get("generateName", "") + uuid.uuid4().hex[:5]
            if not _NAME.fullmatch(name):
                raise ApiError(
                    422, f'{kind.name} "{name}" is invalid: metadata.name: Invalid value: "{name}"', name="Invalid"
                )
            if (kind.plural, namespace, name) in self._objects:
                raise ApiError(409, f'{kind.plural} "{name}" already exists', name="AlreadyExists")
            return self.put(kind, namespace, {**resource, "metadata": {**metadata, "name": name}}, is_dry=is_dry)

    def put(self, kind: Kind, namespace: str, resource: Resource, *, is_dry: bool = False) -> Resource:
        """Create or replace an object, except in a dry run; return it."""
        with self._lock:
            name = resource["metadata"]["name"]
            before = self._objects.get((kind.plural, namespace, name), {"metadata": {}})["metadata"]
            self._version += not is_dry
            created = datetime.fromtimestamp(self._clock(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            kept = copy.deepcopy(resource)
            kept |= {"apiVersion": kind.api_version, "kind": kind.name}
            kept["metadata"] |= {
                "uid": before.get("uid") or str(uuid.uuid4()),
                "creationTimestamp": before.get("creationTimestamp") or created,
                "resourceVersion": self.version,
                **({"namespace": namespace} if kind.is_namespaced else {}),
            }
            if is_dry:
                return kept
            key = (kind.plural, namespace, name)
            self._note(key, "MODIFIED" if key in self._objects else "ADDED", kept)
            self._objects[key] = kept
            return copy.deepcopy(kept)

    def delete(self, kind: Kind, namespace: str, name: str) -> Resource:
        """Delete an object; return it.

        Raises:
            ApiError: The object does not exist.
        """
        with self._lock:
            found = self._find(kind, namespace, name)
            del self._objects[kind.plural, namespace, name]
            self._version += 1
            found["metadata"]["resourceVersion"] = self.version
            self._note((kind.plural, namespace, name), "DELETED", found)
            return found

    def _note(self, key: _Key, kind: str, resource: Resource) -> None:
        self._changes.append((key, Change(kind, self._version, copy.deepcopy(resource))))
        self._lock.notify_all()

    def _find(self, kind: Kind, namespace: str, name: str) -> Resource:
        found = self._objects.get((kind.plural, namespace, name))
        if found is None:
            of = f".{kind.group}" if kind.group else ""
            raise ApiError(404, f'{kind.plural}{of} "{name}" not found', name="NotFound")
        return found


def _is_selected(resource: Resource, labels: str, fields: str) -> bool:
    return labels_match(labels, resource["metadata"].get("labels") or {}) and fields_match(fields, resource)
