"""The change of a pod that gives each of its containers the variables that it lacks. No clock, no network.

A variable is appended, never inserted first, so that the policy can make the same change. One that is there is left,
whatever its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

__all__ = ["Operation", "patch_of", "patch_of_ephemeral"]

Operation: TypeAlias = dict[str, Any]
"""An operation of a JSON Patch, RFC 6902."""


def patch_of(pod: Mapping[str, Any], variables: Mapping[str, str]) -> list[Operation]:
    """Return the operations that give the variables to all containers of a new pod; none if all have them.

    Args:
        pod: The pod as the API server sends it.
        variables: The variables, by name.
    """
    return [
        operation
        for kind in ("initContainers", "containers")
        for index, container in _containers(pod, kind)
        for operation in _operations(f"/spec/{kind}/{index}", container, variables)
    ]


def patch_of_ephemeral(
    pod: Mapping[str, Any], old_pod: Mapping[str, Any], variables: Mapping[str, str]
) -> list[Operation]:
    """Return the operations for the ephemeral containers that an update adds; those of before cannot be changed.

    Args:
        pod: The pod after the update.
        old_pod: The pod before it.
        variables: The variables, by name.
    """
    kind = "ephemeralContainers"
    known = {container.get("name") for _, container in _containers(old_pod, kind)}
    return [
        operation
        for index, container in _containers(pod, kind)
        if container.get("name") not in known
        for operation in _operations(f"/spec/{kind}/{index}", container, variables)
    ]


def _containers(pod: Mapping[str, Any], kind: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    spec = pod.get("spec")
    containers = spec.get(kind) if isinstance(spec, Mapping) else None
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, Mapping):
            yield index, container


def _operations(path: str, container: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Operation]:
    env = container.get("env")
    known = {each.get("name") for each in env if isinstance(each, Mapping)} if isinstance(env, list) else set()
    lacking = [{"name": name, "value": value} for name, value in variables.items() if name not in known]
    if not lacking:
        return
    if not env:  # It is missing, null or empty.
        yield {"op": "add", "path": f"{path}/env", "value": lacking}
    elif isinstance(env, list):
        for variable in lacking:
            yield {"op": "add", "path": f"{path}/env/-", "value": variable}
