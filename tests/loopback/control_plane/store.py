"""Runs and their profiler sessions: storage, etags and listings."""

import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from ml_diagnostics_testing.http_server import ApiError

from .filters import compile_filter, sorted_by
from .resources import RUN, SESSION, Resource, camel_case, parse

NOT_YET = "0001-01-01T00:00:00Z"
"""The endTime of a run that has not ended."""

_MAX_PAGE = 1000
_OWN = ("name", "createTime", "endTime", "metrics")
_OUTPUT_ONLY = ("state", "createTime", "updateTime", "endTime", "metrics")


@dataclass
class _Kept:
    """A run with its sessions. Until its creation is done, its id is reserved but the run is not visible."""

    resource: Resource
    is_visible: bool = False
    sessions: dict[str, Resource] = field(default_factory=dict)


class RunStore:
    """Store runs, and reject invalid requests. Names are full: `projects/P/locations/L/machineLearningRuns/R`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[str, _Kept] = {}

    def create(self, name: str, body: Resource, now: float) -> None:
        """Create a run, which stays invisible until `reveal`.

        Raises:
            ApiError: The name exists, or a field or value of the run is invalid.
        """
        run = parse(RUN, body, "machine_learning_run")
        with self._lock:
            if name in self._runs:
                raise _conflict(name)
            kept = {field: value for field, value in run.items() if field not in _OUTPUT_ONLY}
            moment = timestamp(now)
            kept |= {"name": name, "createTime": moment}
            self._runs[name] = _Kept(_written(kept, None, moment))

    def reveal(self, name: str) -> Resource:
        """Make a created run visible; return it."""
        with self._lock:
            kept = self._runs[name]
            kept.is_visible = True
            return dict(kept.resource)

    def discard(self, name: str) -> None:
        """Delete a run, if it exists."""
        with self._lock:
            self._runs.pop(name, None)

    def get(self, name: str) -> Resource:
        """Return a run.

        Raises:
            ApiError: The run does not exist, or is not visible yet.
        """
        return dict(self._kept(name).resource)

    def update(self, name: str, body: Resource, mask: str, now: float) -> Resource:
        """Change a run; return it.

        Raises:
            ApiError: The run does not exist, the mask is not supported, the etag is missing or outdated, or a field
                or value of the run is invalid.
        """
        with self._lock:
            kept = self._kept(name).resource
            run = parse(RUN, body, "machine_learning_run")
            if mask not in ("*", "workload_details", "workloadDetails"):
                raise ApiError(400, f"update_mask is {mask!r}: partial updates are not supported, use *")
            if not run.get("etag"):
                raise ApiError(400, "etag must be provided for an update")
            _check_etag(name, kept, run["etag"])
            changed = {field: value for field, value in run.items() if field not in _OUTPUT_ONLY}
            if mask != "*":
                changed = {**kept, "workloadDetails": run.get("workloadDetails", {})}
            own: Resource = {
                field: kept[field] for field in ("name", "createTime", "endTime", "metrics") if field in kept
            }
            return self.write(name, {**changed, **own}, now)

    def write(self, name: str, resource: Resource, now: float) -> Resource:
        """Replace a run, with a new etag; return it."""
        with self._lock:
            kept = self._kept(name)
            kept.resource = _written(resource, kept.resource, timestamp(now))
            return dict(kept.resource)

    def delete(self, name: str, etag: str) -> None:
        """Delete a run.

        Raises:
            ApiError: The run does not exist, or the etag is outdated.
        """
        with self._lock:
            if etag:
                _check_etag(name, self._kept(name).resource, etag)
            self._kept(name)
            del self._runs[name]

    def page(self, parent: str, query: Mapping[str, str]) -> tuple[list[Resource], str]:
        """Return one page of a listing and the token of the next.

        Raises:
            ApiError: The filter, the order, the page size or the token is invalid.
        """
        test = compile_filter(query.get("filter", ""))
        with self._lock:
            found = [dict(kept.resource) for name, kept in self._in(parent) if kept.is_visible]
        found = sorted_by([run for run in found if test(run)], _either(query, "orderBy"))
        return _page(found, query, default=10)

    def runs(self) -> list[Resource]:
        """Return all runs, including invisible ones, oldest first."""
        with self._lock:
            return [dict(kept.resource) for kept in self._runs.values()]

    def create_session(self, run: str, session_id: str, body: Resource, now: float) -> Resource:
        """Create a profiler session.

        Raises:
            ApiError: The run does not exist, the session id exists, or a field or value of the session is invalid.
        """
        name = f"{run}/profilerSessions/{session_id}"
        with self._lock:
            sessions = self._kept(run).sessions
            session = parse(SESSION, body, "profiler_session")
            if session_id in sessions:
                raise _conflict(name)
            moment = timestamp(now)
            session |= {"name": name, "createTime": moment, "updateTime": moment, "etag": str(uuid.uuid4())}
            sessions[session_id] = session
            return dict(session)

    def update_session(self, run: str, session_id: str, body: Resource, mask: str, now: float) -> Resource:
        """Change a profiler session in the fields of a mask.

        Raises:
            ApiError: The run or session does not exist, the mask names an unknown field, the etag is outdated, or a
                field or value of the session is invalid.
        """
        with self._lock:
            kept = self.session(run, session_id)
            session = parse(SESSION, body, "profiler_session")
            fields = [*SESSION] if mask == "*" else [camel_case(part.strip()) for part in mask.split(",")]
            unknown = [field for field in fields if field not in SESSION]
            if unknown:
                raise ApiError(400, f"update_mask names {unknown[0]!r}, which no session has")
            if session.get("etag"):
                _check_etag(kept["name"], kept, session["etag"])
            changed = {field: session[field] for field in fields if field in session}
            changed |= {"name": kept["name"], "createTime": kept["createTime"]}
            changed |= {"updateTime": timestamp(now), "etag": str(uuid.uuid4())}
            self._kept(run).sessions[session_id] = {**kept, **changed}
            return dict(self._kept(run).sessions[session_id])

    def session(self, run: str, session_id: str) -> Resource:
        """Return a profiler session.

        Raises:
            ApiError: The run or session does not exist.
        """
        sessions = self._kept(run).sessions
        if session_id not in sessions:
            raise _missing(f"{run}/profilerSessions/{session_id}")
        return dict(sessions[session_id])

    def sessions(self, run: str) -> list[Resource]:
        """Return a run's profiler sessions, oldest first.

        Raises:
            ApiError: The run does not exist.
        """
        with self._lock:
            return [dict(session) for session in self._kept(run).sessions.values()]

    def session_page(self, run: str, query: Mapping[str, str]) -> tuple[list[Resource], str]:
        """Return one page of a run's profiler sessions, ordered by name, and the token of the next.

        Raises:
            ApiError: The run does not exist, or the page size or the token is invalid.
        """
        found = sorted(self.sessions(run), key=lambda session: str(session["name"]))
        return _page(found, query, default=50)

    def clear(self) -> None:
        """Delete all runs."""
        with self._lock:
            self._runs.clear()

    def _kept(self, name: str) -> _Kept:
        kept = self._runs.get(name)
        if kept is None or not kept.is_visible:
            raise _missing(name)
        return kept

    def _in(self, parent: str) -> Iterator[tuple[str, _Kept]]:
        project, location = parent.split("/")[1::2]
        for name, kept in self._runs.items():
            parts = name.split("/")
            if parts[1] == project and location in ("-", parts[3]):
                yield name, kept


def timestamp(now: float) -> str:
    """Format a time in seconds since the epoch as RFC 3339."""
    return datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _written(resource: Resource, before: Resource | None, moment: str) -> Resource:
    """Return a run with the fields that the service sets."""
    phase = resource.setdefault("runPhase", "ACTIVE")
    ended = phase in ("COMPLETED", "FAILED")
    was = (before or {}).get("runPhase")
    end = NOT_YET if not ended else resource["endTime"] if was == phase else moment
    return {
        **resource,
        "state": f"STATE_{phase}" if phase in ("ACTIVE", "COMPLETED", "FAILED") else "STATE_UNSPECIFIED",
        "updateTime": moment,
        "endTime": end,
        "etag": str(uuid.uuid4()),
    }


def _page(found: list[Resource], query: Mapping[str, str], default: int) -> tuple[list[Resource], str]:
    size_text, token = _either(query, "pageSize"), _either(query, "pageToken")
    asked = repr((query.get("filter", ""), _either(query, "orderBy")))
    try:
        size = int(size_text or 0)
        first = int(token.partition(":")[0] or 0)
    except ValueError:
        raise ApiError(400, f"pageSize {size_text!r} or pageToken {token!r} cannot be read") from None
    if size < 0 or (token and token.partition(":")[2] != asked):
        raise ApiError(400, "pageSize is negative, or pageToken is from another listing")
    last = first + min(size or default, _MAX_PAGE)
    return found[first:last], f"{last}:{asked}" if last < len(found) else ""


def _either(query: Mapping[str, str], name: str) -> str:
    """Return a query parameter by its camelCase or snake_case name; "" by default."""
    return next((value for key, value in query.items() if camel_case(key) == name), "")


def _check_etag(name: str, kept: Resource, etag: str) -> None:
    if etag != kept["etag"]:
        raise ApiError(409, f"the etag {etag} of '{name}' is outdated; the current one is {kept['etag']}")


def _conflict(name: str) -> ApiError:
    return ApiError(409, f"Resource '{name}' already exists", name="ALREADY_EXISTS")


def _missing(name: str) -> ApiError:
    return ApiError(404, f"Resource '{name}' was not found")
