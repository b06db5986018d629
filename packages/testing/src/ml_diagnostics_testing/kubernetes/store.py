"""The objects of the loopback cluster."""

import copy
import re
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from ml_diagnostics_testing.http_server import ApiError
from ml_diagnostics_testing.kubernetes.kinds import Kind
from ml_diagnostics_testing.kubernetes.selectors import fields_match, labels_match

Resource = dict[str, Any]
_Key = tuple[str, str, str]
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class ObjectStore:
    """Objects by kind, namespace and name. Safe to use from many threads; what it returns is a copy.

    Args:
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._objects: dict[_Key, Resource] = {}
        self._version = 1
        self._lock = threading.RLock()

    @property
    def version(self) -> str:
        """The resourceVersion of the latest change."""
        return str(self._version)

    def get(self, kind: Kind, namespace: str, name: str) -> Resource:
        """Returns an object.

        Raises:
            ApiError: There is none.
        """
        with self._lock:
            return copy.deepcopy(self._find(kind, namespace, name))

    def list(self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "") -> list[Resource]:
        """Returns the objects of a kind that selectors take, by namespace and name; an empty namespace is all."""
        with self._lock:
            return [
                copy.deepcopy(found)
                for (plural, where, _), found in sorted(self._objects.items())
                if plural == kind.plural
                and where == (namespace or where)
                and labels_match(labels, found["metadata"].get("labels") or {})
                and fields_match(fields, found)
            ]

    def create(self, kind: Kind, namespace: str, resource: Resource) -> Resource:
        """Keeps a new object; returns it as it is kept.

        Raises:
            ApiError: There is one of that name, or the name cannot be one.
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
            return self.put(kind, namespace, {**resource, "metadata": {**metadata, "name": name}})

    def put(self, kind: Kind, namespace: str, resource: Resource) -> Resource:
        """Keeps an object in place of the one of its name, if there is one; returns it as it is kept."""
        with self._lock:
            name = resource["metadata"]["name"]
            before = self._objects.get((kind.plural, namespace, name), {"metadata": {}})["metadata"]
            self._version += 1
            created = datetime.fromtimestamp(self._clock(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            kept = copy.deepcopy(resource)
            kept |= {"apiVersion": kind.api_version, "kind": kind.name}
            kept["metadata"] |= {
                "uid": before.get("uid") or str(uuid.uuid4()),
                "creationTimestamp": before.get("creationTimestamp") or created,
                "resourceVersion": self.version,
                **({"namespace": namespace} if kind.is_namespaced else {}),
            }
            self._objects[kind.plural, namespace, name] = kept
            return copy.deepcopy(kept)

    def delete(self, kind: Kind, namespace: str, name: str) -> Resource:
        """Forgets an object; returns it as it was.

        Raises:
            ApiError: There is none.
        """
        with self._lock:
            found = self._find(kind, namespace, name)
            del self._objects[kind.plural, namespace, name]
            self._version += 1
            return found

    def _find(self, kind: Kind, namespace: str, name: str) -> Resource:
        found = self._objects.get((kind.plural, namespace, name))
        if found is None:
            of = f".{kind.group}" if kind.group else ""
            raise ApiError(404, f'{kind.plural}{of} "{name}" not found', name="NotFound")
        return found
