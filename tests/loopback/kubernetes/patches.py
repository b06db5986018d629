"""Patches of objects, in the formats that kubectl sends.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ml_diagnostics_testing.http_server import ApiError

_APPLY: Final = "application/apply-patch+yaml"
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ports": ("containerPort", "port"),
    "secrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}


def is_apply(content_type: str) -> bool:
    """Return True for a server-side apply, which creates a missing object."""
    return content_type.partition(";")[0] == _APPLY


def patched(resource: Mapping[str, Any], patch: Any, content_type: str) -> dict[str, Any]:
    """Return a copy of an object with a patch applied.

    Args:
        resource: The object.
        patch: The patch.
        content_type: The format of the patch.

    Raises:
        ApiError: The patch cannot be applied.
    """
    apply = _PATCHES.get(content_type.partition(";")[0])
    if apply is None:
        raise ApiError(
            415, f"the loopback cluster does not support patches of type {content_type}", name="UnsupportedMediaType"
        )
    try:
        changed = apply(copy.deepcopy(dict(resource)), patch)
        if not isinstance(changed, dict):
            raise TypeError(f"expected an object as the result, got {changed!r}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ApiError(422, f"the patch cannot be applied: {error!r}", name="Invalid") from error
    return changed


def _merge(resource: Any, patch: Any) -> Any:
    """Apply a JSON merge patch, RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(resource) if isinstance(resource, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _strategic(resource: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a strategic merge patch: lists of items with a key are merged by that key."""
    changes = dict(patch)
    merged = dict(resource) if isinstance(resource, Mapping) and changes.pop("$patch", "") != "replace" else {}
    if "$retainKeys" in changes:
        kept = changes.pop("$retainKeys")
        merged = {name: value for name, value in merged.items() if name in kept}
    for name, value in changes.items():
        directive, _, field = name.partition("/")
        if directive == "$setElementOrder":
            continue
        if directive == "$deleteFromPrimitiveList":
            merged[field] = [one for one in merged.get(field, []) if one not in value]
        elif value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = _strategic(merged.get(name), value)
        elif isinstance(value, list):
            merged[name] = _strategic_list(name, merged.get(name) or [], value)
        else:
            merged[name] = value
    return merged


def _strategic_list(name: str, items: Sequence[Any], changes: Sequence[Any]) -> list[Any]:
    key = next(
        (key for key in _KEYS.get(name, ()) if all(isinstance(one, Mapping) and key in one for one in changes)), ""
    )
    if not key:
        return [one for one in changes if one != {"$patch": "replace"}]
    merged = {item[key]: item for item in items}
    for change in changes:
        if change.get("$patch") == "delete":
            merged.pop(change[key], None)
        else:
            merged[change[key]] = _strategic(merged.get(change[key]), change)
    return list(merged.values())


def _operations(resource: Any, patch: Sequence[Mapping[str, Any]]) -> Any:
    """Apply a JSON patch, RFC 6902, with add, replace and remove."""
    for operation in patch:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        parent = resource
        for part in path:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        if operation["op"] not in ("add", "replace", "remove"):
            raise ValueError(f"operation {operation['op']!r}")
        if isinstance(parent, list):
            position = len(parent) if last == "-" else int(last)
            parent[position : position + (operation["op"] != "add")] = (
                [] if operation["op"] == "remove" else [operation["value"]]
            )
        elif operation["op"] == "remove":
            del parent[last]
        else:
            parent[last] = operation["value"]
    return resource


_PATCHES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "application/merge-patch+json": _merge,
    "application/strategic-merge-patch+json": _strategic,
    "application/json-patch+json": _operations,
    _APPLY: _strategic,
}
