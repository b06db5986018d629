"""Conversions between resources of Google's API and those of our callers. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google_cloud_mldiagnostics.control_plane import Resource

__all__ = ["as_resource", "is_made_of", "merged", "only", "quoted", "writable"]

_Kind = TypeVar("_Kind")
_NOT_OURS_TO_WRITE = ("@type", "attempts", "createTime", "endTime", "metrics", "state", "updateTime")
_NOT_YET = "0001-01-01"  # The API's endTime of a run that has not ended.


def as_resource(kept: Resource) -> Resource:
    """Return a resource of the API with its id as the name, and without the endTime of a run that has not ended."""
    resource = {name: value for name, value in kept.items() if name != "@type"}
    resource["name"] = str(kept.get("name", "")).rpartition("/")[2]
    if str(kept.get("endTime", "")).startswith(_NOT_YET):
        del resource["endTime"]
    return resource


def writable(run: Resource) -> Resource:
    """Return the fields of a run to send: not those that the service computes, nor those for this machine only."""
    return {name: value for name, value in run.items() if name not in _NOT_OURS_TO_WRITE}


def only(kept: Resource, *names: str) -> Resource:
    """Return some of the fields, if they exist."""
    return {name: kept[name] for name in names if name in kept}


def is_made_of(kept: Any, sent: Any) -> bool:
    """Return whether a kept resource has all fields that were sent; empty ones may be missing."""
    if not isinstance(sent, Mapping) or not isinstance(kept, Mapping):
        return bool(kept == sent)
    return all(is_made_of(kept.get(name), value) for name, value in sent.items() if value or name in kept)


def merged(kept: Resource, session: Resource) -> Resource:
    """Return a session with the entries of this host and of the others."""
    targets = [*_as(list, kept.get("profilerTargets")), *session.get("profilerTargets", ())]
    sessions = {**_as(dict, kept.get("targetSessions")), **session.get("targetSessions", {})}
    return {
        **session,
        **only(kept, "name", "etag"),
        **({"profilerTargets": sorted(set(map(str, targets)))} if targets else {}),
        **({"targetSessions": sessions} if sessions else {}),
    }


def _as(kind: type[_Kind], value: Any) -> _Kind:
    return value if isinstance(value, kind) else kind()


def quoted(text: str) -> str:
    """Quote a text for a filter (https://google.aip.dev/160): quotes and backslashes are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
