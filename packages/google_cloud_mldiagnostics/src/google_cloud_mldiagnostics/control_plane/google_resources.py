"""Runs and sessions as Google's API has them, and as our callers do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google_cloud_mldiagnostics.control_plane import Resource

__all__ = ["as_resource", "is_made_of", "merged", "only", "quoted", "writable"]

_Kind = TypeVar("_Kind")
_NOT_OURS_TO_WRITE = ("@type", "attempts", "createTime", "endTime", "metrics", "state", "updateTime")
_NOT_YET = "0001-01-01"  # The API's endTime of a run that has not ended.


def as_resource(kept: Resource) -> Resource:
    """What the API keeps, with the id for its name and without the time at which it has not ended."""
    resource = {name: value for name, value in kept.items() if name != "@type"}
    resource["name"] = str(kept.get("name", "")).rpartition("/")[2]
    if str(kept.get("endTime", "")).startswith(_NOT_YET):
        del resource["endTime"]
    return resource


def writable(run: Resource) -> Resource:
    """What of a run may be sent: not what the service computes, nor what is only for this machine."""
    return {name: value for name, value in run.items() if name not in _NOT_OURS_TO_WRITE}


def only(kept: Resource, *names: str) -> Resource:
    """Some of the fields, as far as they are there."""
    return {name: kept[name] for name in names if name in kept}


def is_made_of(kept: Any, sent: Any) -> bool:
    """Whether what is kept has all that was sent; what is empty may be left out."""
    if not isinstance(sent, Mapping) or not isinstance(kept, Mapping):
        return bool(kept == sent)
    return all(is_made_of(kept.get(name), value) for name, value in sent.items() if value or name in kept)


def merged(kept: Resource, session: Resource) -> Resource:
    """A session with what this host and others have told of it."""
    targets = [*_as(list, kept.get("profilerTargets")), *session.get("profilerTargets", ())]
    told = {**_as(dict, kept.get("targetSessions")), **session.get("targetSessions", {})}
    return {
        **session,
        **only(kept, "name", "etag"),
        **({"profilerTargets": sorted(set(map(str, targets)))} if targets else {}),
        **({"targetSessions": told} if told else {}),
    }


def _as(kind: type[_Kind], value: Any) -> _Kind:
    return value if isinstance(value, kind) else kind()


def quoted(text: str) -> str:
    """A text in a filter (https://google.aip.dev/160): quotes and backslashes cannot end it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
