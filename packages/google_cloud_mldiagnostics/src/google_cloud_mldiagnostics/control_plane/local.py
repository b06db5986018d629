"""Runs in a folder of this machine: `runs/<run id>/run.json` in the diagnostics folder, and their sessions beside it.

A file is replaced as a whole, so that readers get the old one or the new one. A process that changes a run holds its
lock, so that the processes of a host do not undo each other's changes.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.files import open_lock_file, read_regular, unlock, wait_for_lock
from ml_diagnostics_common.guard import warn_once

from google_cloud_mldiagnostics.control_plane import Change, Resource
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunExistsError, RunNotFoundError

__all__ = ["LocalControlPlane"]

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_LOCK_SECONDS = 2.0
_LONGEST_NAME = 150
_MOST_BYTES = 2**24
"""The largest file: a run of 10,000 metrics has 2 MB."""
_ANY = "*"
_Type = type[str] | type[int] | list[Any] | dict[str, Any]
_EXPECTED = {str: "a text", int: "a whole number"}
_PROCESS: _Type = {
    **dict.fromkeys(("hostname", "started", "phase", "startTime", "endTime", "reason"), str),
    **dict.fromkeys(("process_index", "pid"), int),
}
_ATTEMPT: _Type = {
    **dict.fromkeys(("token", "phase", "startTime", "endTime", "reason"), str),
    "number": int,
    "processes": [_PROCESS],
}
_RESOURCE: _Type = {
    **dict.fromkeys(("name", "displayName", "runSet", "runPhase", "orchestrator", "kind", "storageFolderUri"), str),
    **dict.fromkeys(("createTime", "updateTime", "endTime", "duration", "errorDetails", "etag"), str),
    "artifacts": {"gcsPath": str},
    "labels": {_ANY: str},
    "configs": {_ANY: {_ANY: str}},
    "attempts": [_ATTEMPT],
    "targetSessions": {_ANY: dict.fromkeys(("sessionPhase", "startTime", "endTime"), str)},
}
"""The fields of a run and of a session that the commands read, and their types; `_ANY` stands for all other names."""
_REMEDY = "; move it away, and the run starts from scratch"
_REMEDY_OF_SESSION = "; move it away, and the run is shown without this profile"


class LocalControlPlane:
    """Runs in a folder. Files may be of other programs: only regular ones of a limited size are read.

    Args:
        root: The diagnostics folder.
        clock_ns: Return the time in ns since 1970.
    """

    def __init__(self, root: Path, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.runs_folder = root / "runs"
        """The folder of all runs."""
        self._clock_ns = clock_ns

    def folder(self, run_id: str) -> Path:
        """Return the run's own folder, which may not exist.

        Raises:
            ControlPlaneError: The id is not valid.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise ControlPlaneError(
                f"{run_id!r} is not a valid id of a run: use at most 200 letters, digits, '.', '_' and '-'"
            )
        return self.runs_folder / run_id

    def get_run(self, run_id: str) -> Resource:
        """See `ControlPlane`."""
        try:
            return _read(self.folder(run_id) / "run.json")
        except FileNotFoundError:
            raise RunNotFoundError(
                f"there is no run {run_id} in {self.runs_folder}; `mldiagnostics runs` lists the existing ones",
                code=404,
            ) from None

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """See `ControlPlane`."""
        folder = self.folder(run_id)
        _make_folder(folder)
        with _locked(folder):
            if (folder / "run.json").exists():
                raise RunExistsError(f"there is a run {run_id} in {folder.parent} already", code=409)
            now = format_timestamp(self._clock_ns())
            return _write(
                folder / "run.json", {**copy.deepcopy(run), "name": run_id, "createTime": now, "updateTime": now}
            )

    def update_run(self, run_id: str, change: Change) -> Resource:
        """See `ControlPlane`."""
        folder = self.folder(run_id)
        if not folder.is_dir():
            self.get_run(run_id)  # Raises RunNotFoundError.
        with _locked(folder):
            run = self.get_run(run_id)
            changed = change(copy.deepcopy(run))
            if changed is None:
                return run
            return _write(folder / "run.json", {**changed, "updateTime": format_timestamp(self._clock_ns())})

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """See `ControlPlane`. A run that cannot be read is skipped, with a warning."""
        runs = []
        for path in self.runs_folder.glob("*/run.json"):
            try:
                runs.append(_read(path))
            except ControlPlaneError as error:
                warn_once(("run.json", path.parent.name), "%s", error)
            except OSError:
                pass  # It was removed meanwhile.
        runs.sort(key=lambda run: str(run.get("createTime", "")), reverse=True)
        return (run for run in runs if group is None or run.get("runSet", "") == group)

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return for each run what changes whenever its `run.json` does: its time in ns and its inode.

        Raises:
            OSError: The folder exists and cannot be read.
        """
        stamps = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.runs_folder) as folders:
            for folder in folders:
                with contextlib.suppress(OSError):  # Not a folder, without a run, or removed meanwhile.
                    status = os.stat(f"{folder.path}/run.json")  # noqa: PTH116 - of thousands each second
                    stamps[folder.name] = status.st_mtime_ns, status.st_ino
        return stamps

    def put_session(self, run_id: str, session_id: str, session: Resource) -> None:
        """See `ControlPlane`. The entries of all hosts in `targetSessions` are merged."""
        folder = self.folder(run_id) / "sessions"
        _make_folder(folder)
        path = folder / f"{_file_name(session_id)}.json"
        with _locked(folder):
            now = format_timestamp(self._clock_ns())
            kept: Resource = {"createTime": now}
            with contextlib.suppress(FileNotFoundError):
                kept = _read(path, _REMEDY_OF_SESSION)
            targets = {**(kept.get("targetSessions") or {}), **(session.get("targetSessions") or {})}
            merged = {**kept, **copy.deepcopy(session), "name": session_id, "updateTime": now}
            _write(path, merged | ({"targetSessions": targets} if targets else {}))

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """See `ControlPlane`. A session that cannot be read is left out, with a warning."""
        sessions = []
        for path in (self.folder(run_id) / "sessions").glob("*.json"):
            try:
                sessions.append(_read(path, _REMEDY_OF_SESSION))
            except ControlPlaneError as error:
                warn_once(("session", run_id, path.name), "%s", error)
            except OSError:
                pass  # It was removed meanwhile.
        return iter(sorted(sessions, key=lambda session: str(session.get("createTime", ""))))

    def link(self, run_id: str) -> str:
        """See `ControlPlane`: the run's folder."""
        return str(self.folder(run_id))


def _read(path: Path, remedy: str = _REMEDY) -> Resource:
    """Return the contents of a file.

    Raises:
        FileNotFoundError: It does not exist.
        ControlPlaneError: It cannot be read, or was not written by us.
    """
    try:
        content: Any = json.loads(read_regular(path, _MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except OSError as error:
        is_replaced = error.errno in (errno.EINVAL, errno.EFBIG, errno.EISDIR)  # It is not a regular file of ours.
        raise ControlPlaneError(f"{path} cannot be read: {error.strerror}{remedy if is_replaced else ''}") from error
    except (ValueError, RecursionError) as error:
        raise ControlPlaneError(f"{path} is damaged ({error}){remedy}") from error
    problem = _problem_of(content)
    if problem:
        raise ControlPlaneError(f"{path} is damaged: {problem}{remedy}")
    return cast("Resource", content)


def _problem_of(content: object) -> str:
    """Return the problem of a file's contents; empty if all types are those that we write."""
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        return "expected an object with a name"
    return _mismatch(content, _RESOURCE, "")


def _mismatch(value: object, expected: _Type, name: str) -> str:
    """Return the first value that is not of the expected type, by its path; null counts as absent in an object."""
    if isinstance(expected, list):
        if not isinstance(value, list):
            return f"{name} is {_kind_of(value)}, expected a list"
        problems = (_mismatch(item, expected[0], f"{name}[{index}]") for index, item in enumerate(value))
    elif isinstance(expected, dict):
        if not isinstance(value, dict):
            return f"{name} is {_kind_of(value)}, expected an object"
        of_any = expected.get(_ANY)
        fields = [(key, expected.get(key, of_any)) for key in (expected if of_any is None else value)]
        problems = (
            _mismatch(value[key], kind, f"{name}.{key}" if name else key)
            for key, kind in fields
            if kind is not None and value.get(key) is not None
        )
    else:
        is_right = isinstance(value, expected) and not (expected is int and isinstance(value, bool))
        return "" if is_right else f"{name} is {_kind_of(value)}, expected {_EXPECTED[expected]}"
    return next(filter(None, problems), "")


def _kind_of(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _write(path: Path, content: Resource) -> Resource:
    """Replace a file as a whole, and return its contents."""
    data = json.dumps({**content, "etag": ""}, ensure_ascii=False, sort_keys=True).encode("utf-8", "backslashreplace")
    written: Resource = {**json.loads(data), "etag": hashlib.sha256(data).hexdigest()[:16]}
    draft = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(written, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace"))
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise ControlPlaneError(f"{path} cannot be written: {error.strerror}", is_temporary=True) from error
    return written


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ControlPlaneError(f"{folder} cannot be created: {error.strerror}", is_temporary=True) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; continue without it on a file system without locks."""
    descriptor = -1
    try:
        try:
            descriptor = open_lock_file(folder / ".lock")
            wait_for_lock(descriptor, _LOCK_SECONDS)
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise ControlPlaneError(f"{folder} is locked: {error.strerror}", is_temporary=True) from error
        yield
    finally:
        if descriptor >= 0:
            unlock(descriptor)  # Closing is not enough: a child that was forked meanwhile has it open, too.
            os.close(descriptor)


def _file_name(name: str) -> str:
    """Return a file name for a name that users choose, which may have slashes and be long."""
    quoted = quote(name, safe="", errors="backslashreplace").replace(".", "%2E")
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{quoted[:_LONGEST_NAME]}-{digest}"
