"""Where runs are found: in the folder of this machine, or in a project of Google Cloud. And what they have recorded."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.exceptions import CloudLoggingError
from ml_diagnostics_common.reader import JournalReader

from google_cloud_mldiagnostics.control_plane import ControlPlane, Resource
from google_cloud_mldiagnostics.entries import LOG_ID, PROCESS, SESSION
from google_cloud_mldiagnostics.exceptions import RunNotFoundError
from google_cloud_mldiagnostics.run_history import COMPANION_LOG_ID, RunHistory
from google_cloud_mldiagnostics.run_reader import run_reader
from google_cloud_mldiagnostics.run_view import RunView, State, phase_of, view_run

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import LoggingTransport
    from ml_diagnostics_common.entry import LogEntry

__all__ = ["DEFAULT_REGION", "RunSource", "cloud_source", "local_source"]

DEFAULT_REGION: Final = "us-central1"
_LAST: Final = "last"
_SECOND_NS: Final = 1_000_000_000
_CLOCKS_DIFFER_NS: Final = 600 * _SECOND_NS
_PATIENCE_SECONDS: Final = 60.0
_PAGE_SIZE: Final = 1000
_MOST_PAGES: Final = 10
_NAMES_SHOWN: Final = 10


class RunSource:
    """Runs, and what they recorded.

    Args:
        control_plane: Who keeps them.
        root: The diagnostics folder of this machine.
        transport: Cloud Logging, where that is read too.
        region: In which runs are kept.
        is_gone: Tells of a process of this machine whether it runs no more.
        notes: Is told what could not be read.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        root: Path,
        *,
        transport: LoggingTransport | None = None,
        region: str = "",
        is_gone: Callable[[Mapping[str, Any]], bool] = lambda process: False,
        notes: Callable[[str], None] = lambda note: None,
    ) -> None:
        self.control_plane = control_plane
        self._root = root
        self.transport = transport
        self.region = region
        self._is_gone = is_gone
        self._notes = notes

    @property
    def is_cloud(self) -> bool:
        """Whether they are Google's."""
        return self.transport is not None

    def find(self, name: str) -> Resource:
        """Returns the run of that id, or whose id begins so; "last" is the one that began last.

        Raises:
            RunNotFoundError: There is none, or there are several.
            ControlPlaneError: The control plane could not be asked.
        """
        try:
            return self.control_plane.get_run(name)
        except RunNotFoundError as error:
            runs = self.control_plane.list_runs()
            if name == _LAST:
                found = list(itertools.islice(runs, 1))
            else:
                found = [run for run in runs if _id(run).startswith(name)]
            if len(found) == 1:
                return found[0]
            if not found:
                raise error
        names = ", ".join(_id(run) for run in found[:_NAMES_SHOWN])
        raise RunNotFoundError(f"{len(found)} runs begin with {name!r}; give more of its id: {names}", code=404)

    @property
    def place(self) -> str:
        """Where that is, for people."""
        if self.transport is not None:
            return f"the project {self.transport.project} ({self.region})"
        return str(self._root / "runs")

    def entries(self, run_id: str) -> Iterator[list[LogEntry]]:
        """Yields all entries of a run; where Cloud Logging fails, what there is until then."""
        return self._told(run_reader(run_id, root=self._root, transport=self.transport).read_new())

    def overview(self, run: Resource) -> Iterator[list[LogEntry]]:
        """Yields what tells of a run as a whole: all entries, or, where each page takes a second, the newest."""
        if self.transport is None:
            yield from self.entries(_id(run))
            return
        yield from self._told(self.process_entries(run))
        selection, namespaces = self._selection(run), (PROCESS, SESSION)
        others = "".join(f" AND resource.labels.namespace!={_quoted(name)}" for name in namespaces)
        newest = self._told(self._pages(selection + others, _started_ns(run), order_by="timestamp desc"))
        yield from itertools.islice(newest, _MOST_PAGES)
        if next(newest, None):
            self._notes(
                f"the metrics are of the newest {_MOST_PAGES * _PAGE_SIZE:,} values; `mldiagnostics metrics` reads all"
            )

    def view(self, run: Resource, history: RunHistory, *, with_sessions: bool = True) -> RunView:
        """Returns a run as it is shown, once its entries are known."""
        sessions = list(self.control_plane.list_sessions(_id(run))) if with_sessions else []
        now_ns = time.time_ns()
        view = view_run(run, history, sessions, now_ns=now_ns, is_gone=self._is_gone)
        if view.state in (State.ACTIVE, State.STALE) and history.processes:
            for batch in self._told(self._companions(view.started_ns or 0)):
                history.add(batch)
            view = view_run(run, history, sessions, now_ns=now_ns, is_gone=self._is_gone)
        return view

    def views(self, group: str | None, limit: int | None) -> Iterator[RunView]:
        """Yields the runs, the newest first, with as much of their entries as tells how they are."""
        for run in itertools.islice(self.control_plane.list_runs(group), limit):
            history = RunHistory()
            if phase_of(run) is State.ACTIVE:
                for batch in self._told(self.process_entries(run)):
                    history.add(batch)
            yield self.view(run, history, with_sessions=False)

    def process_entries(self, run: Resource) -> Iterator[list[LogEntry]]:
        """Yields those entries of a run that tell of its processes and profiles."""
        if self.transport is None:
            # A journal is read in no time, and any entry is a sign of life.
            yield from self.entries(_id(run))
            return
        namespaces = " OR ".join(f"resource.labels.namespace={_quoted(name)}" for name in (PROCESS, SESSION))
        yield from self._pages(f"{self._selection(run)} AND ({namespaces})", _started_ns(run))

    def _selection(self, run: Resource) -> str:
        """The filter of Cloud Logging for a run's entries."""
        from ml_diagnostics_common.cloud_logging.filters import log_filter

        assert self.transport is not None
        return log_filter(self.transport.project, LOG_ID, None, {"node_id": _id(run)})

    def _companions(self, since_ns: int) -> Iterator[list[LogEntry]]:
        """What companions told of how processes ended, whoever's they are."""
        if (self._root / "journal").is_dir():
            yield from JournalReader(COMPANION_LOG_ID, root=self._root).read_new()
        if self.transport is not None:
            from ml_diagnostics_common.cloud_logging.filters import full_log_name

            log = _quoted(full_log_name(self.transport.project, COMPANION_LOG_ID))
            yield from self._pages(f'logName={log} AND jsonPayload.kind="job_ended"', since_ns)

    def _pages(self, selection: str, since_ns: int, order_by: str = "timestamp asc") -> Iterator[list[LogEntry]]:
        """The entries of Cloud Logging that a filter selects, a page at a time."""
        from ml_diagnostics_common.backoff import Backoff
        from ml_diagnostics_common.cloud_logging import TransportError
        from ml_diagnostics_common.cloud_logging.filters import entries_filter

        assert self.transport is not None
        after_ns, until_ns = max(0, since_ns - _CLOCKS_DIFFER_NS), time.time_ns() + _CLOCKS_DIFFER_NS
        filter_ = entries_filter(selection, after_ns=after_ns, until_ns=until_ns)
        token, backoff, deadline = "", Backoff(longest_seconds=16.0), time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                page = self.transport.list_page(
                    filter_, order_by=order_by, page_size=_PAGE_SIZE, page_token=token, timeout_seconds=30.0
                )
            except TransportError as error:
                wait_seconds = backoff.failed(error.retry_after_seconds)
                if not error.retryable or time.monotonic() + wait_seconds > deadline:
                    raise
                time.sleep(wait_seconds)
                continue
            backoff.succeeded()
            yield page.entries
            token = page.next_page_token
            if not token:
                return

    def _told(self, batches: Iterator[list[LogEntry]]) -> Iterator[list[LogEntry]]:
        """The batches, until Cloud Logging fails: then what is known counts."""
        try:
            yield from batches
        except CloudLoggingError as error:
            self._notes(f"Cloud Logging could not be read to the end: {error}")


def local_source(notes: Callable[[str], None]) -> RunSource:
    """Returns the runs of this machine."""
    from google_cloud_mldiagnostics.attempts import Member
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
    from google_cloud_mldiagnostics.process_life import is_alive

    root = diagnostics_directory()
    here = Member(identity().host, 0, 0, "")

    def is_gone(process: Mapping[str, Any]) -> bool:
        return process.get("hostname") == here.host and not is_alive(process, here)

    return RunSource(LocalControlPlane(root), root, is_gone=is_gone, notes=notes)


def cloud_source(project: str | None, region: str | None, notes: Callable[[str], None]) -> RunSource:
    """Returns the runs of a project. Waits a second at most for credentials.

    Args:
        project: The project; None for the one that is found.
        region: The region in which its runs are kept; None for the usual one.
        notes: Is told what could not be read.

    Raises:
        CredentialsError: There is no project, or there are no credentials.
    """
    from ml_diagnostics_common.cloud_logging import make_transport
    from ml_diagnostics_common.credentials import find_cloud

    from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane

    cloud = find_cloud(project, environ=os.environ)
    region = region or DEFAULT_REGION
    control_plane = GoogleControlPlane(cloud.project, region, cloud.credentials, principal=cloud.principal)
    transport = make_transport(cloud)
    return RunSource(control_plane, diagnostics_directory(), transport=transport, region=region, notes=notes)


def _id(run: Resource) -> str:
    return str(run.get("name", "")).rpartition("/")[2]


def _quoted(text: str) -> str:
    from ml_diagnostics_common.cloud_logging.filters import quoted

    return quoted(text)


def _started_ns(run: Resource) -> int:
    from ml_diagnostics_common.entry import parse_timestamp

    try:
        return parse_timestamp(str(run.get("createTime", "")))
    except ValueError:
        return 0
