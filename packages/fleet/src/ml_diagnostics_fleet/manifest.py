"""Manifests: the files that belong to a table. A file that no manifest names does not exist for a reader.

Version n+1 is created if it does not exist yet. Of two processes that create it, one is refused: it starts again from
that version. A version is kept for 7 days after the next one was created.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from ml_diagnostics_common.entry import SeenSequences
from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError, PreconditionFailedError
from ml_diagnostics_common.mirror.names import SegmentName

from ml_diagnostics_fleet._paths import LAYOUT, FleetPaths

__all__ = [
    "EventsEntry",
    "EventsManifest",
    "Gap",
    "LogState",
    "ManifestConflictError",
    "ManifestError",
    "RowsManifest",
    "RowsSnapshot",
    "commit",
    "delete_old_manifests",
    "latest_events",
    "latest_rows",
    "until_committed",
]

FORMAT: Final = 1
_FIRST_SEQUENCE = 100_000_000_000
_TRIES = 3
_MOST_CONFLICTS: Final = 9
_KEPT_NS: Final = 7 * 86_400 * 10**9
_MOST_DELETED: Final = 20
"""Versions that are read at a time: more than one for each that is created, so that their number falls."""
_REMEDY = "restore it, or delete it within 7 days: then the version before counts, and what it lacks is made again"


class ManifestError(DiagnosticsError):
    """A manifest is damaged, or of a newer version."""


class ManifestConflictError(DiagnosticsError):
    """Another process created this version first."""


@dataclass(frozen=True, slots=True)
class EventsEntry:
    """A file of events.

    Attributes:
        path: Relative to the layout's folder.
        group: The group of its jobs.
        rows: The number of its events.
        bytes: Its size.
        jobs: The number of its jobs.
        first_t_ns: The earliest time of its entries.
        last_t_ns: The latest.
    """

    path: str
    group: str
    rows: int
    bytes: int
    jobs: int
    first_t_ns: int
    last_t_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that a writer numbered and that are not in the table: from `first` to `last`."""

    log: str
    writer: str
    first: int
    last: int


@dataclass(slots=True)
class LogState:
    """How far the entries of one log are in the table.

    Attributes:
        log: Its name.
        seen: The numbers of the entries of each writer.
        ended: The writers that have ended, and of which all is in the mirror.
        gapped: Segments that were read and have fewer entries than numbers: they need not be read again.
        lasts: The last number of a writer, by the object of its end or by a damaged segment.
    """

    log: str
    seen: SeenSequences = field(default_factory=SeenSequences)
    ended: set[str] = field(default_factory=set)
    gapped: set[str] = field(default_factory=set)
    lasts: dict[str, int] = field(default_factory=dict)

    def copy(self) -> LogState:
        """Return a copy that changes by itself."""
        seen = SeenSequences.from_json(self.seen.to_json())
        return LogState(self.log, seen, set(self.ended), set(self.gapped), dict(self.lasts))

    def covers(self, name: SegmentName) -> bool:
        """Return True if all numbers of a segment are in the table."""
        return self.seen.covers(name.writer, name.first, name.last)

    def has(self, name: SegmentName) -> bool:
        """Return True if all entries of a segment are in the table."""
        return f"{name}" in self.gapped or self.covers(name)

    def expect(self, writer: str, last: int) -> None:
        """Note that a writer has numbered entries up to this one, whether they are in the table or not."""
        if last > self.lasts.get(writer, 0) and (writer, last) not in self.seen:
            self.lasts[writer] = last

    def gaps(self) -> list[Gap]:
        """Return the entries that are missing, also before the first of a writer and after the last."""
        found, seen = [], self.seen.to_json()
        for writer in sorted({*seen, *self.lasts}):
            expected = _FIRST_SEQUENCE
            for first, last in seen.get(writer, []):
                if first > expected >= _FIRST_SEQUENCE:
                    found.append(Gap(self.log, writer, expected, first - 1))
                expected = last + 1
            if self.lasts.get(writer, 0) >= expected:
                found.append(Gap(self.log, writer, expected, self.lasts[writer]))
        return found


@dataclass(frozen=True, slots=True)
class EventsManifest:
    """The table of events.

    Attributes:
        version: 0 for an empty table.
        created_ns: When it was created, in ns since 1970.
        files: Its files.
        logs: How far each log is in it, by the name of the log's folder.
        removed: Files that were replaced, and when: running queries may still read them.
        damaged: Segments that could not be read.
    """

    version: int = 0
    created_ns: int = 0
    files: tuple[EventsEntry, ...] = ()
    logs: Mapping[str, LogState] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()

    TABLE = "events"

    def gaps(self) -> list[Gap]:
        """Return the entries that are missing."""
        return [gap for name in sorted(self.logs) for gap in self.logs[name].gaps()]

    def groups(self) -> dict[str, list[EventsEntry]]:
        """Return the files of each group."""
        groups: dict[str, list[EventsEntry]] = {}
        for entry in self.files:
            groups.setdefault(entry.group, []).append(entry)
        return groups

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "created_ns": self.created_ns,
            "files": [{name: getattr(entry, name) for name in EventsEntry.__slots__} for entry in self.files],
            "logs": {
                name: {
                    "log": state.log,
                    "writers": state.seen.to_json(),
                    "ended": sorted(state.ended),
                    "gapped": sorted(state.gapped),
                    "lasts": {writer: last for writer, last in state.lasts.items() if (writer, last) not in state.seen},
                }
                for name, state in sorted(self.logs.items())
            },
            "gaps": [[gap.log, gap.writer, gap.first, gap.last] for gap in self.gaps()],
            "removed": dict(self.removed),
            "damaged": list(self.damaged),
        }

    @classmethod
    def from_json(cls, version: int, known: Mapping[str, Any]) -> EventsManifest:
        """Return what `to_json` wrote."""
        logs = {
            name: LogState(
                state["log"],
                SeenSequences.from_json(state["writers"]),
                set(state["ended"]),
                set(state["gapped"]),
                {writer: int(last) for writer, last in state.get("lasts", {}).items()},
            )
            for name, state in known["logs"].items()
        }
        files = tuple(EventsEntry(**entry) for entry in known["files"])
        return cls(version, known["created_ns"], files, logs, dict(known["removed"]), tuple(known["damaged"]))


@dataclass(frozen=True, slots=True)
class RowsSnapshot:
    """The rows of one run over the fleet.

    Attributes:
        as_of_ns: The moment at which jobs that run end.
        rules: The version of the ledger's rules.
        events_version: The manifest of events that was read.
        jobs: The number of jobs.
        events: The number of events.
        errors: The number of jobs without rows, since their map failed.
        files: Paths by table, relative to the layout's folder.
        continuous: True if each job has a moment of its own, this one at the latest: the continuous engine replaces
            such a snapshot by its next one.
    """

    as_of_ns: int
    rules: str
    events_version: int
    jobs: int
    events: int
    errors: int
    files: Mapping[str, Sequence[str]]
    continuous: bool = False


@dataclass(frozen=True, slots=True)
class RowsManifest:
    """The tables of rows.

    Attributes:
        version: 0 for empty tables.
        created_ns: When it was created, in ns since 1970.
        snapshots: The runs, the latest moment first; one for each moment.
        removed: Files that were replaced, and when.
    """

    version: int = 0
    created_ns: int = 0
    snapshots: tuple[RowsSnapshot, ...] = ()
    removed: Mapping[str, int] = field(default_factory=dict)

    TABLE = "rows"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        snapshots = [{name: getattr(one, name) for name in RowsSnapshot.__slots__} for one in self.snapshots]
        return {"created_ns": self.created_ns, "snapshots": snapshots, "removed": dict(self.removed)}

    @classmethod
    def from_json(cls, version: int, known: Mapping[str, Any]) -> RowsManifest:
        """Return what `to_json` wrote."""
        snapshots = tuple(
            RowsSnapshot(**{**one, "files": {name: tuple(files) for name, files in one["files"].items()}})
            for one in known["snapshots"]
        )
        return cls(version, known["created_ns"], snapshots, dict(known["removed"]))


_Manifest = TypeVar("_Manifest", EventsManifest, RowsManifest)
_Result = TypeVar("_Result")


def latest_events(mirror: str | os.PathLike[str], version: int | None = None) -> EventsManifest:
    """Return the newest manifest of the table of events, or an earlier version; one of version 0 if there is none.

    Raises:
        ManifestError: It is damaged, or of a newer version of this library.
        StorageError: It cannot be read.
    """
    paths = FleetPaths(mirror)
    if version == 0:
        return EventsManifest()
    found = _latest(paths, EventsManifest.TABLE) if version is None else _read(paths, EventsManifest.TABLE, version)
    version, known = found
    return EventsManifest() if known is None else _decoded(EventsManifest, version, known)


def latest_rows(mirror: str | os.PathLike[str]) -> RowsManifest:
    """Return the newest manifest of the tables of rows; else as `latest_events`."""
    version, known = _latest(FleetPaths(mirror), RowsManifest.TABLE)
    return RowsManifest() if known is None else _decoded(RowsManifest, version, known)


def until_committed(action: Callable[[], _Result]) -> _Result:
    """Return the result of an action that reads the newest manifest and commits the next one.

    It starts again while other processes are faster.

    Args:
        action: The action.

    Raises:
        ManifestConflictError: Others were faster ten times.
    """
    for _ in range(_MOST_CONFLICTS):
        with contextlib.suppress(ManifestConflictError):
            return action()
    return action()


def commit(mirror: str | os.PathLike[str], manifest: _Manifest, now_ns: int) -> _Manifest:
    """Create the next version.

    Args:
        mirror: The mirror.
        manifest: The new content, with the version on which it is based.
        now_ns: The time, in ns since 1970.

    Returns:
        The manifest with its new version.

    Raises:
        ManifestConflictError: Another process created that version first.
        StorageError: It cannot be written.
    """
    paths, following = FleetPaths(mirror), replace(manifest, version=manifest.version + 1, created_ns=now_ns)
    known = {"format": FORMAT, "version": following.version, **following.to_json()}
    data = json.dumps(known, separators=(",", ":")).encode()
    path = _path(paths, manifest.TABLE, following.version)
    if manifest.version and not paths.storage.exists(_path(paths, manifest.TABLE, manifest.version)):
        # The version after it may be deleted, too, and creating it once more would replace no later one.
        raise ManifestConflictError(f"version {manifest.version} of the manifest of {manifest.TABLE} was deleted")
    try:
        paths.storage.write(path, data, if_generation=0)
    except PreconditionFailedError:
        # An answer may be lost after the object was created, and then the retry is refused.
        if paths.storage.read(path) != data:
            raise ManifestConflictError(f"another process created {path} first") from None
    return following


def delete_old_manifests(mirror: str | os.PathLike[str], table: str, now_ns: int) -> int:
    """Delete versions that a later one replaced more than 7 days ago, some at a time; return their number.

    Args:
        mirror: The mirror.
        table: `events` or `rows`.
        now_ns: The time, in ns since 1970.

    Raises:
        StorageError: The mirror cannot be listed or read, or a version cannot be deleted.
    """
    paths, count = FleetPaths(mirror), 0
    for version, following in itertools.pairwise(sorted(_versions(paths, table))[:_MOST_DELETED]):
        try:
            replaced_ns = _read(paths, table, following)[1].get("created_ns")
            if not isinstance(replaced_ns, int) or now_ns - replaced_ns <= _KEPT_NS:
                break
            paths.storage.delete(_path(paths, table, version))
        except (ManifestError, ObjectNotFoundError):
            break
        count += 1
    return count


def _versions(paths: FleetPaths, table: str) -> list[int]:
    """Return the versions that exist."""
    listed = paths.listed(paths.full(f"manifests/{table}/"))
    names = (path.replace(os.sep, "/").rpartition("/")[2].removesuffix(".json") for path in listed)
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _path(paths: FleetPaths, table: str, version: int) -> str:
    return paths.full(f"manifests/{table}/{version:012d}.json")


def _latest(paths: FleetPaths, table: str) -> tuple[int, Mapping[str, Any] | None]:
    newer = paths.listed(f"{paths.mirror}/v{int(LAYOUT[1:]) + 1}/", limit=1)
    if newer:
        raise ManifestError(f"{newer[0]} was written by a newer version of ml-diagnostics: update this one")
    for _ in range(_TRIES):
        versions = _versions(paths, table)
        if not versions:
            return 0, None
        try:
            return _read(paths, table, max(versions))
        except ObjectNotFoundError:
            continue
    raise ObjectNotFoundError(f"{_path(paths, table, max(versions))} is listed, and does not exist")


def _read(paths: FleetPaths, table: str, version: int) -> tuple[int, Mapping[str, Any]]:
    path = _path(paths, table, version)
    try:
        known = json.loads(paths.storage.read(path))
    except ValueError as error:
        raise ManifestError(f"{path} is damaged: {error}; {_REMEDY}") from None
    if not isinstance(known, dict) or not isinstance(known.get("format"), int):
        raise ManifestError(f"{path} is not a manifest; {_REMEDY}")
    if known["format"] > FORMAT:
        raise ManifestError(f"{path} was written by a newer version of ml-diagnostics-fleet: update this one")
    return version, known


def _decoded(kind: Any, version: int, known: Mapping[str, Any]) -> Any:
    try:
        return kind.from_json(version, known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"version {version} of the manifest of {kind.TABLE} is damaged: {type(error).__name__}: {error}; {_REMEDY}"
        ) from None
