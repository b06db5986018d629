"""The workload of a pod: the last supported kind in the chain of its owners. No clock, no network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google_cloud_mldiagnostics._kubernetes.names import LABEL, SUPPORTED

__all__ = ["Link", "Owner", "Workload", "controller_of", "has_label", "workload_of"]

_VERSION: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Owner(NamedTuple):
    """A reference to the controller of an object.

    Attributes:
        group: The API group, without its version; empty for the core group.
        version: The version of the group in the reference.
        kind: The kind.
        name: The name, in the namespace of the object.
        uid: The id, which no other object ever has, not even one of the same name.
    """

    group: str
    version: str
    kind: str
    name: str
    uid: str

    @property
    def is_supported(self) -> bool:
        """True if objects of this kind can be the workload of a pod."""
        return (self.group, self.kind) in SUPPORTED


class Link(NamedTuple):
    """An owner, and its metadata as the API server returned it."""

    owner: Owner
    metadata: Mapping[str, Any]


class Workload(NamedTuple):
    """The workload that a pod belongs to.

    Attributes:
        name: Its name.
        kind: Its kind, such as JobSet.
        uid: Its id.
        labels: Its labels, by key.
        created: When it was created, as the API server writes it; empty if that is not known.
        parent: The name of its own controller, of a kind that is not supported; empty without one.
    """

    name: str
    kind: str
    uid: str
    labels: Mapping[str, str]
    created: str
    parent: str


def controller_of(metadata: Mapping[str, Any]) -> Owner | None:
    """Return the controller of an object; None without one.

    Args:
        metadata: The object's `metadata`. References that are not valid are left out.
    """
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, Mapping) and reference.get("controller") is True:
            group, _, version = _text(reference, "apiVersion").rpartition("/")
            kind, name, uid = (_text(reference, key) for key in ("kind", "name", "uid"))
            # They become a part of a path, and a caller may invent them.
            if _VERSION.fullmatch(version) and kind and name not in ("", ".", "..") and uid:
                return Owner(group, version, kind, name, uid)
    return None


def workload_of(chain: Sequence[Link]) -> Workload | None:
    """Return the workload of a pod; None if none of its owners is of a supported kind.

    Args:
        chain: The owners of the pod, its controller first, each the controller of the one before.
    """
    for link in reversed(chain):
        if link.owner.is_supported:
            above = controller_of(link.metadata)
            return Workload(
                name=link.owner.name,
                kind=link.owner.kind,
                uid=link.owner.uid,
                labels=_texts(link.metadata.get("labels")),
                created=_text(link.metadata, "creationTimestamp"),
                parent=above.name if above is not None and not above.is_supported else "",
            )
    return None


def has_label(metadata: Mapping[str, Any]) -> bool:
    """Return True if an object asks for the variables by its label."""
    return _texts(metadata.get("labels")).get(LABEL) == "true"


def _text(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    return value if isinstance(value, str) else ""


def _texts(value: object) -> dict[str, str]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {key: text for key, text in items if isinstance(key, str) and isinstance(text, str)}
