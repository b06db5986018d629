"""Send the entries and profiles of a run of this machine to Google Cloud; sending twice changes nothing.

The run and its own shipper may be active meanwhile: an entry has the same insertId from either sender, and Cloud
Logging keeps one. A profile's file that has arrived is not sent again. The position of the sent entries is kept on this
machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from ml_diagnostics_common.backoff import Backoff, Retries
from ml_diagnostics_common.cloud_logging import BatchWriter, LoggingTransport, cut_to_fit, full_log_name
from ml_diagnostics_common.entry import EntryContext, LogEntry, encode_cloud
from ml_diagnostics_common.exceptions import PreconditionFailedError
from ml_diagnostics_common.files import in_bucket, read_regular
from ml_diagnostics_common.journal import Header, Segment, list_segments, log_directory, read_header, shipped_position
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_common.storage import storage_for

from google_cloud_mldiagnostics._entries import LOG_ID
from google_cloud_mldiagnostics._profiling.locations import (
    SESSIONS,
    SUFFIX,
    TRACE_JSON_SUFFIX,
    session_folder,
    sessions_folder,
)
from google_cloud_mldiagnostics.control_plane import ControlPlane, Resource, resource_id

__all__ = [
    "EntriesSent",
    "ProfilesSent",
    "arrived",
    "home_of",
    "profile_files",
    "send_entries",
    "send_profiles",
    "send_sessions",
]

_Encoded: TypeAlias = dict[str, Any]
"""An entry as Cloud Logging's REST takes it."""
_BATCH: Final = 500
_REPORT_EVERY: Final = 10_000
_REQUEST_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 60.0
_KEPT_BY_EACH: Final = ("createTime", "etag", "name", "updateTime")
_PROFILES: Final = (SUFFIX, TRACE_JSON_SUFFIX)
"""The files that profilers write; XProf adds others when it shows a profile."""
_MOST_PROFILE_BYTES: Final = 4 << 30  # XProf's protobufs end at 2 GiB.


@dataclass
class EntriesSent:
    """The counts of a run's entries.

    Attributes:
        sent: The number of entries that Cloud Logging accepted.
        refused: The number of entries that it will never accept.
        why_refused: The server's message for the first refused entry.
    """

    sent: int = 0
    refused: int = 0
    why_refused: str = ""

    def refuse(self, reasons: Sequence[str]) -> None:
        """Count entries that were refused for good."""
        self.refused += len(reasons)
        self.why_refused = self.why_refused or next(iter(reasons), "")


@dataclass
class ProfilesSent:
    """The counts of a run's profiles.

    Attributes:
        sent: The files that were sent.
        size_bytes: The size of all of them.
        known: The number of files that existed at the destination.
        sessions: The sessions with files at the destination.
    """

    sent: list[str] = field(default_factory=list)
    size_bytes: int = 0
    known: int = 0
    sessions: set[str] = field(default_factory=set)


# --- Entries ------------------------------------------------------------------------------------------


def send_entries(
    run_id: str,
    transport: LoggingTransport,
    *,
    root: Path,
    location: str,
    progress: Callable[[EntriesSent], None] = lambda sent: None,
    sleep: Callable[[float], None] = time.sleep,
) -> EntriesSent:
    """Send those of a run's entries that were not sent yet, with their insertIds.

    Args:
        run_id: The run.
        transport: The Cloud Logging of the project.
        root: The diagnostics folder.
        location: The region that stores the run.
        progress: Called with the counts so far, every ten thousand entries.
        sleep: Waits a number of seconds.

    Raises:
        TransportError: Cloud Logging refused, or kept failing; the next call continues from there.
    """
    name = f"sync {transport.project} {run_id}"
    position = JournalReader.load_position(name, LOG_ID, root=root) or _shipped(run_id, transport.project, root)
    reader = JournalReader(LOG_ID, root=root, position=position, resource_labels={"node_id": {run_id}})
    sent, reported, encode, batches = EntriesSent(), 0, _Encoder(transport.project, location), BatchWriter()

    def write(part: Sequence[Mapping[str, Any]]) -> None:
        transport.write(part, timeout_seconds=_REQUEST_SECONDS)

    for entries in reader.read_new():
        remaining = iter(entries)
        while batch := list(islice(remaining, _BATCH)):
            retries = _retries(sleep)
            refused = batches.write([encode(entry) for entry in batch], write, before_retry=retries.wait_after)
            sent.sent += len(batch) - len(refused)
            sent.refuse(refused)
        # Not before all of them have arrived: the reader has passed them already.
        reader.save_position(name, job=run_id)
        if sent.sent - reported >= _REPORT_EVERY:
            reported = sent.sent
            progress(sent)
    return sent


def _retries(sleep: Callable[[float], None]) -> Retries:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    return Retries(Backoff(longest_seconds=16.0), seconds_left=lambda: deadline - time.monotonic(), sleep=sleep)


class _Encoder:
    """Entries of the journal as Cloud Logging takes them: it wants a project, a full name, and none that is too big."""

    def __init__(self, project: str, location: str) -> None:
        self._project, self._location = project, location
        self._contexts: dict[str | None, EntryContext] = {}

    def __call__(self, entry: LogEntry) -> _Encoded:
        context = entry.context
        cloud_context = self._contexts.get(context.writer)
        if cloud_context is None:
            labels = {**(context.resource.get("labels") or {}), "project_id": self._project, "location": self._location}
            cloud_context = context._replace(
                log_name=full_log_name(self._project, LOG_ID), resource={**context.resource, "labels": labels}
            )
            self._contexts[context.writer] = cloud_context
        entry.context = cloud_context
        cut_to_fit(entry)
        return encode_cloud(entry)


def home_of(run_id: str, root: Path) -> tuple[str, str]:
    """Return the project and the region of the job's run, as far as they are known."""
    for _, header in _segments(run_id, root):
        return header.project, str((header.resource.get("labels") or {}).get("location", ""))
    return "", ""


def _shipped(run_id: str, project: str, root: Path) -> dict[str, Any]:
    """Return the position behind the entries that the run's own shipper has sent to this project."""
    writers: dict[str, dict[str, int]] = {}
    for segment, header in _segments(run_id, root):
        shipped = shipped_position(root, LOG_ID, segment.writer)
        if header.ship and header.project == project and segment.number <= shipped.segment:
            offset = segment.size if segment.number < shipped.segment else shipped.offset
            writers.setdefault(segment.writer, {})[str(segment.number)] = offset
    return {"writers": writers}


def _segments(run_id: str, root: Path) -> Iterator[tuple[Segment, Header]]:
    """Yield the files of the journal that have entries of a run."""
    for segment in list_segments(log_directory(root, LOG_ID)):
        header: Header | None = None
        with contextlib.suppress(OSError):  # The file was dropped after it was listed.
            header = read_header(segment)
        if header is not None and (header.resource.get("labels") or {}).get("node_id") == run_id:
            yield segment, header


# --- Profiles -----------------------------------------------------------------------------------------


def profile_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the files of profiles below some logdirs, by session and name."""
    files: dict[str, Path] = {}
    for folder in folders:
        sessions = folder.joinpath(*SESSIONS)
        for session in sorted(sessions.glob("*")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # The job has uploaded it meanwhile.
                for path in sorted(session.iterdir()):
                    if path.is_file() and not path.name.startswith(".") and path.name.endswith(_PROFILES):
                        files.setdefault(f"{session.name}/{path.name}", path)
    return files


def send_profiles(
    files: Mapping[str, Path], logdir: str, *, staging: Path, on_start: Callable[[str], None] = lambda name: None
) -> ProfilesSent:
    """Send the files of profiles that are not at their target yet.

    Args:
        files: The files by session and name: see `profile_files`.
        logdir: The argument of XProf there: `gs://...`.
        staging: The folder of files that wait to be sent: they are removed once they have arrived.
        on_start: Called with each name before it is sent.

    Raises:
        StorageError: The store failed.
        OSError: A file could not be read, is not a regular one, or has more than 4 GiB.
    """
    storage, sent = storage_for(logdir), ProfilesSent()
    for name, path in files.items():
        target = f"{sessions_folder(logdir)}/{name}"
        if storage.exists(target):
            sent.known += 1
        else:
            on_start(name)
            try:
                data = read_regular(path, _MOST_PROFILE_BYTES)
                storage.write(target, data, if_generation=0)
                sent.sent.append(name)
                sent.size_bytes += len(data)
            except FileNotFoundError:  # The run's own process was faster.
                continue
            except PreconditionFailedError:
                sent.known += 1
        sent.sessions.add(name.partition("/")[0])
        if path.is_relative_to(staging):
            path.unlink(missing_ok=True)
    return sent


def arrived(session: Resource, hosts: Sequence[str]) -> Resource:
    """Return a session as ended if its files have arrived but its processes ended before they reported that.

    Args:
        session: The session as this machine keeps it.
        hosts: The hosts with files that have arrived.
    """
    targets = session.get("targetSessions") or {}
    ended = {"sessionPhase": "SUCCEEDED", "endTime": session.get("updateTime", "")}
    now = {
        host: {**target, **ended} if target.get("sessionPhase") == "ACTIVE" and host in hosts else target
        for host, target in targets.items()
    }
    return {**session, "targetSessions": now} if now != targets else session


def send_sessions(
    run_id: str, sessions: Sequence[Resource], logdir: str, there: set[str], cloud: ControlPlane
) -> list[str]:
    """Report the run's profiler sessions that have files in the cloud to the control plane.

    Args:
        run_id: The run.
        sessions: The sessions as this machine keeps them.
        logdir: The argument of XProf there.
        there: The sessions that have files there.
        cloud: The control plane.

    Returns:
        The ids of the reported sessions.

    Raises:
        ControlPlaneError: The request was refused, or not answered.
    """
    reported = []
    for session in sessions:
        session_id = resource_id(session)
        folder = str(session.get("storageFolderUri", ""))
        if session_id in there:
            folder = session_folder(logdir, session_id)
        if in_bucket(folder):
            known = {name: value for name, value in session.items() if name not in _KEPT_BY_EACH}
            cloud.put_session(run_id, session_id, {**known, "storageFolderUri": folder})
            reported.append(session_id)
    return reported
