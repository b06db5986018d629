"""Runs and their entries: of this machine, or of a project of Google Cloud."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ml_diagnostics_common.entry import COMPANION_LOG_ID, LogEntry
from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.log_source import Cloud, LogSource, Query, notes_of
from ml_diagnostics_common.program_end import UNSEEN_EXIT
from ml_diagnostics_common.reader import Take

from google_cloud_mldiagnostics._entries import LOG_ID, PROCESS, SESSION
from google_cloud_mldiagnostics._reading.run_history import RunHistory, time_ns
from google_cloud_mldiagnostics._reading.run_view import RunView, State, phase_of, view_run
from google_cloud_mldiagnostics._run_state.attempts import has_unseen_exit
from google_cloud_mldiagnostics.control_plane import ControlPlane, Resource, resource_id
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunNotFoundError

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

__all__ = ["CloudSource", "LocalSource", "RunEntries", "RunSource"]

Batches = Iterator[list[LogEntry]]

_SECOND_NS: Final = 1_000_000_000
_CLOCK_DIFFERENCE_NS: Final = 600 * _SECOND_NS
_SYNC_DELAY_NS: Final = 35 * 86_400 * _SECOND_NS
"""`mldiagnostics sync` creates a run there after it has ended: at most as long as its entries are kept."""
_PATIENCE_SECONDS: Final = 60.0
_PROGRESS_SECONDS: Final = 5.0
_RUNS_A_QUERY: Final = 50
_NEWEST_PAGES: Final = 10
_DEFAULT_REGION: Final = "us-central1"
_LAST: Final = "last"
_NAMES_SHOWN: Final = 10


class RunEntries:
    """Read the entries of runs, in batches by time. `notes` reports what cannot be read; no error is raised.

    All of a run's entries in the journal are always yielded. The methods differ in their requests to Cloud Logging,
    which takes a second per 1000 entries.

    Args:
        root: The diagnostics folder.
        cloud: Cloud Logging of the project that keeps the runs; None reads the journal alone.
        report_progress: Prints how many entries were read from Cloud Logging so far.
        progress_seconds: The time between two such notes.
    """

    def __init__(
        self,
        root: Path,
        cloud: Cloud | None,
        report_progress: Callable[[str], None],
        *,
        progress_seconds: float = _PROGRESS_SECONDS,
    ) -> None:
        self._root, self._cloud, self._report_progress = root, cloud, report_progress
        self._progress_seconds = progress_seconds
        self._sources: list[LogSource] = []

    def everything(self, run: Resource) -> Batches:
        """Yield all entries of a run."""
        return self._of_runs([run])

    def of_metrics(self, run: Resource, names: Sequence[str]) -> Batches:
        """Yield the entries of some of a run's metrics, and perhaps others; without names, of all."""
        return self._of_runs([run], *([Query(_namespaces(*names))] if names else []))

    def overview(self, run: Resource) -> Batches:
        """Yield the entries on a run's processes and profiles, and the newest of its metrics."""
        note = f"Cloud Logging sent only the newest {_NEWEST_PAGES * 1000:,} values; `mldiagnostics metrics` reads all"
        newest = Query(f"NOT ({_namespaces(PROCESS, SESSION)})", _NEWEST_PAGES, note)
        return self._of_runs([run], *_PROCESS_QUERIES, newest)

    def of_processes(self, run: Resource) -> Batches:
        """Yield the entries on a run's processes and profiles."""
        return self._of_runs([run], *_PROCESS_QUERIES)

    def signs_of_life(self, runs: Sequence[Resource]) -> Batches:
        """Yield the entries that show which of some runs still run."""
        for first in range(0, len(runs), _RUNS_A_QUERY):
            yield from self._of_runs(runs[first : first + _RUNS_A_QUERY], _NEWEST_SIGNS)
        if runs and self._cloud is None:
            yield from self.endings(0)

    def endings(self, since_ns: int) -> Batches:
        """Yield the entries of companions on ends of processes, of all runs."""
        return self.read(self.source_of_companions(since_ns, 'jsonPayload.kind=("job_ended" OR "left_block")'))

    def source_of_run(self, run: Resource) -> LogSource:
        """Return the source of all entries of a run, to `read` what is new in it repeatedly."""
        return self._source([run])

    def source_of_runs(self, runs: Sequence[Resource]) -> LogSource:
        """Return the source of all entries of some runs, to `read` what is new in them repeatedly.

        The journal yields the entries of all runs, so that one reader serves runs that start later, too.

        Args:
            runs: The runs of which Cloud Logging sends the entries; at least one if there is a cloud.
        """
        if self._cloud is None:
            return LogSource(LOG_ID, root=self._root)
        return self._source(runs)

    def source_of_companions(self, since_ns: int, condition: str) -> LogSource:
        """Return the source of the entries of companions.

        Args:
            since_ns: Cloud Logging sends only those since this time, in ns since 1970.
            condition: Cloud Logging sends only what this selects; the journal yields those of all jobs.
        """
        start_ns = max(0, since_ns - _CLOCK_DIFFERENCE_NS)
        return LogSource(
            COMPANION_LOG_ID, root=self._root, cloud=self._cloud, queries=[Query(condition)], start_ns=start_ns
        )

    def notes(self) -> list[str]:
        """Return sentences on what could not be read so far."""
        return notes_of(self._sources)

    def _of_runs(self, runs: Sequence[Resource], *queries: Query) -> Batches:
        return self.read(self._source(runs, *queries))

    def _source(self, runs: Sequence[Resource], *queries: Query) -> LogSource:
        return LogSource(
            LOG_ID,
            root=self._root,
            cloud=self._cloud,
            resource_labels={"node_id": {resource_id(run) for run in runs}},
            queries=queries,
            start_ns=min(map(_since_ns, runs)) or None,
        )

    def read(self, source: LogSource, take: Take | None = None) -> Batches:
        """Yield a source's batches; report the number of entries while that takes long.

        Args:
            source: The source.
            take: See `LogSource.read_new`.
        """
        if source not in self._sources:
            self._sources.append(source)
        count, reported_at = 0, time.monotonic()
        for batch in source.read_new(take=take):
            count += len(batch)
            if self._cloud is not None and time.monotonic() - reported_at > self._progress_seconds:
                reported_at = time.monotonic()
                self._report_progress(f"{count:,} entries read")
            yield batch


def _since_ns(run: Resource) -> int:
    """Return when the first entries of a run may have been recorded, in ns since 1970."""
    return max(0, (time_ns(run.get("createTime")) or 0) - _SYNC_DELAY_NS)


def _namespaces(*names: str) -> str:
    from ml_diagnostics_common.cloud_logging import any_of

    return any_of("resource.labels.namespace", names)


# A job of many hosts sends so many heartbeats (phase ACTIVE) that only the newest are read.
_NEWEST_SIGNS: Final = Query(f'resource.labels.namespace="{PROCESS}"', _NEWEST_PAGES)
_PROCESS_QUERIES: Final = (
    Query(
        f'resource.labels.namespace="{SESSION}" OR (resource.labels.namespace="{PROCESS}"'
        " AND (jsonPayload.phase!=ACTIVE OR jsonPayload.address:* OR jsonPayload.reason:*))"
    ),
    _NEWEST_SIGNS,
)


class RunSource:
    """Runs and their entries.

    Attributes:
        name: The folder or project, for the user.
        control_plane: Keeps the runs.
        entries: The entries of the runs.
        has_credentials: True if buckets can be read, too.
        report: Prints a note for the user.
    """

    has_credentials: ClassVar[bool] = False
    name: str
    control_plane: ControlPlane
    entries: RunEntries

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report

    def find(self, name: str) -> Resource:
        """Return the run with that id, or with an id that starts so; "last" is the one that started last.

        Raises:
            RunNotFoundError: No run or several runs match.
            ControlPlaneError: The request to the control plane failed.
        """
        try:
            return self.control_plane.get_run(name)
        except RunNotFoundError:
            runs = self.control_plane.list_runs()
            if name == _LAST:
                found = list(itertools.islice(runs, 1))
                if not found:
                    raise RunNotFoundError(f"there is no last run: {self.name} has no runs", code=404) from None
            else:
                found = [run for run in runs if resource_id(run).startswith(name)]
            if not found:
                raise
            if len(found) == 1:
                return found[0]
        names = ", ".join(resource_id(run) for run in found[:_NAMES_SHOWN])
        raise RunNotFoundError(f"{len(found)} runs start with {name!r}; give more of its id: {names}", code=404)

    def view(self, run: Resource, history: RunHistory, *, has_endings: bool = False) -> RunView:
        """Return a run as it is shown, after its entries were read; report what could not be read.

        Args:
            run: The run.
            history: Its entries.
            has_endings: True if `history` has the entries of companions, too.
        """
        try:
            sessions = list(self.control_plane.list_sessions(resource_id(run)))
        except ControlPlaneError as error:
            sessions = []
            self.report(f"only profiles that processes recorded are shown: {error}")
        processes = history.processes.values()
        is_open = phase_of(run) is not State.COMPLETED or any(
            record.fields.get("reason") == UNSEEN_EXIT for record in processes
        )
        if is_open and history.processes and not has_endings:
            for batch in self.entries.endings(min(record.first_ns for record in processes)):
                history.add(batch)
        self.report_unread()
        return view_run(run, history, sessions, now_ns=time.time_ns(), is_gone=self.is_gone)

    def views(self, group: str | None, limit: int) -> list[RunView]:
        """Return runs, the newest first, with enough of their entries to show which of them still run.

        Args:
            group: Only runs of this group; None is all.
            limit: The most runs.

        Raises:
            ControlPlaneError: The request to the control plane failed.
        """
        runs = list(itertools.islice(self.control_plane.list_runs(group), limit))
        histories = {resource_id(run): RunHistory() for run in runs}
        is_open = [run for run in runs if phase_of(run) is State.ACTIVE or has_unseen_exit(run)]
        for batch in self.entries.signs_of_life(is_open):
            by_run: dict[str, list[LogEntry]] = defaultdict(list)
            for entry in batch:
                by_run[entry.resource_label("node_id")].append(entry)
            for run_id, entries in by_run.items():
                if run_id in histories:
                    histories[run_id].add(entries)
                elif not run_id:  # A companion's entry has no run.
                    for history in histories.values():
                        history.add(entries)
        self.report_unread()
        now_ns = time.time_ns()
        return [view_run(run, histories[resource_id(run)], now_ns=now_ns, is_gone=self.is_gone) for run in runs]

    def report_unread(self) -> None:
        """Report what could not be read, if anything."""
        for note in self.entries.notes():
            self.report(note)

    def is_gone(self, process: Mapping[str, Any]) -> bool:
        """Return True if a process in the attempts of a run is known to be gone."""
        return False


class LocalSource(RunSource):
    """The runs of this machine.

    Args:
        report: Prints a note for the user.
    """

    control_plane: LocalControlPlane

    def __init__(self, report: Callable[[str], None]) -> None:
        from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

        super().__init__(report)
        self.root: Path = diagnostics_directory()
        self.name = str(self.root / "runs")
        self.control_plane = LocalControlPlane(self.root)
        self.entries = RunEntries(self.root, None, report)

    def is_gone(self, process: Mapping[str, Any]) -> bool:
        from google_cloud_mldiagnostics._run_state.process_life import is_alive, is_visible

        host = identity().host
        return is_visible(process, host) and not is_alive(process, host)


class CloudSource(RunSource):
    """The runs of a project. Waits a second at most for credentials.

    Args:
        project: The project; None for the one that is found.
        region: The region of its runs; None for the usual one.
        report: Prints a note for the user.
        report_progress: Prints how many entries were read so far.
        progress_seconds: The time between two such notes.

    Attributes:
        project: The project.
        region: The region.
        transport: The project's Cloud Logging.

    Raises:
        CredentialsError: There is no project, or there are no credentials.
    """

    has_credentials = True
    control_plane: GoogleControlPlane

    def __init__(
        self,
        project: str | None,
        region: str | None,
        report: Callable[[str], None],
        report_progress: Callable[[str], None],
        *,
        progress_seconds: float = _PROGRESS_SECONDS,
    ) -> None:
        from ml_diagnostics_common.credentials import find_cloud

        from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane

        super().__init__(report)
        environment = find_cloud(project)
        self.project, self.region = environment.project, region or _DEFAULT_REGION
        self.name = f"the project {environment.project} ({self.region})"
        self.control_plane = GoogleControlPlane(
            environment.project, self.region, environment.credentials, principal=environment.principal
        )
        cloud = Cloud(environment, patience_seconds=_PATIENCE_SECONDS, logs_failures=False)
        self.transport = cloud.connect()
        self.entries = RunEntries(diagnostics_directory(), cloud, report_progress, progress_seconds=progress_seconds)
