"""Where runs are found: in the folder of this machine, or in a project of Google Cloud."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.program_end import UNSEEN_EXIT
from ml_diagnostics_common.reader import note_of_unreadable

from google_cloud_mldiagnostics.attempts import has_unseen_exit
from google_cloud_mldiagnostics.control_plane import ControlPlane, Resource
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunNotFoundError
from google_cloud_mldiagnostics.reading.run_entries import CloudEntries, JournalEntries, RunEntries, run_id_of
from google_cloud_mldiagnostics.reading.run_history import RunHistory
from google_cloud_mldiagnostics.reading.run_view import RunView, State, phase_of, view_run

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import LoggingTransport

    from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

__all__ = ["CloudSource", "LocalSource", "RunSource"]

_DEFAULT_REGION: Final = "us-central1"
_LAST: Final = "last"
_NAMES_SHOWN: Final = 10


class RunSource:
    """Runs, and what they recorded.

    Attributes:
        place: Where they are, for people.
        control_plane: Who keeps them.
        entries: What they recorded.
    """

    place: str
    control_plane: ControlPlane
    entries: RunEntries

    def __init__(self, notes: Callable[[str], None]) -> None:
        self._notes = notes

    def find(self, name: str) -> Resource:
        """Returns the run of that id, or whose id begins so; "last" is the one that began last.

        Raises:
            RunNotFoundError: There is none, or there are several.
            ControlPlaneError: The control plane could not be asked.
        """
        try:
            return self.control_plane.get_run(name)
        except RunNotFoundError:
            runs = self.control_plane.list_runs()
            if name == _LAST:
                found = list(itertools.islice(runs, 1))
            else:
                found = [run for run in runs if run_id_of(run).startswith(name)]
            if not found:
                raise
            if len(found) == 1:
                return found[0]
        names = ", ".join(run_id_of(run) for run in found[:_NAMES_SHOWN])
        raise RunNotFoundError(f"{len(found)} runs begin with {name!r}; give more of its id: {names}", code=404)

    def view(self, run: Resource, history: RunHistory) -> RunView:
        """Returns a run as it is shown, once its entries are known."""
        try:
            sessions = list(self.control_plane.list_sessions(run_id_of(run)))
        except ControlPlaneError as error:
            sessions = []
            self._notes(f"profiles are known only as far as processes told of them: {error}")
        is_open = not phase_of(run).has_ended or any(
            record.told.get("reason") == UNSEEN_EXIT for record in history.processes.values()
        )
        if is_open and history.processes:
            for batch in self.entries.endings(min(record.first_ns for record in history.processes.values())):
                history.add(batch)
        return view_run(run, history, sessions, now_ns=time.time_ns(), is_gone=self._is_gone)

    def views(self, group: str | None, limit: int) -> list[RunView]:
        """Returns runs, the newest first, with as much of their entries as tells which of them go on.

        Args:
            group: Only those of this group; None is all.
            limit: No more than these.

        Raises:
            ControlPlaneError: The control plane could not be asked.
        """
        runs = list(itertools.islice(self.control_plane.list_runs(group), limit))
        histories = {run_id_of(run): RunHistory() for run in runs}
        is_open = [run for run in runs if phase_of(run) is State.ACTIVE or has_unseen_exit(run)]
        for batch in self.entries.signs_of_life(is_open):
            for run_id, entries in itertools.groupby(batch, key=lambda entry: entry.resource_label("node_id")):
                if run_id in histories:
                    histories[run_id].add(entries)
                elif not run_id:  # Of a companion, which knows of no run.
                    endings = list(entries)
                    for history in histories.values():
                        history.add(endings)
        now_ns = time.time_ns()
        return [view_run(run, histories[run_id_of(run)], now_ns=now_ns, is_gone=self._is_gone) for run in runs]

    def note_unreadable(self) -> None:
        """Note how many of the entries that were read cannot be decoded, if there are any."""
        count = self.entries.unreadable()
        if count:
            self._notes(note_of_unreadable(count))

    def _is_gone(self, process: Mapping[str, Any]) -> bool:
        """Whether a process in the attempts of a run is known to run no more."""
        return False


class LocalSource(RunSource):
    """The runs of this machine.

    Args:
        notes: Is told what could not be read.
    """

    control_plane: LocalControlPlane

    def __init__(self, notes: Callable[[str], None]) -> None:
        from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

        super().__init__(notes)
        self.root: Path = diagnostics_directory()
        self.place = str(self.root / "runs")
        self.control_plane = LocalControlPlane(self.root)
        self.entries = JournalEntries(self.root)

    def _is_gone(self, process: Mapping[str, Any]) -> bool:
        from google_cloud_mldiagnostics.attempts import Member
        from google_cloud_mldiagnostics.process_life import is_alive, is_visible

        here = Member(identity().host, 0, 0, "")
        return is_visible(process, here) and not is_alive(process, here)


class CloudSource(RunSource):
    """The runs of a project. Waits a second at most for credentials.

    Args:
        project: The project; None for the one that is found.
        region: The region in which its runs are kept; None for the usual one.
        notes: Is told what could not be read.

    Attributes:
        region: The region.
        transport: Its Cloud Logging.

    Raises:
        CredentialsError: There is no project, or there are no credentials.
    """

    control_plane: GoogleControlPlane

    def __init__(self, project: str | None, region: str | None, notes: Callable[[str], None]) -> None:
        from ml_diagnostics_common.cloud_logging import make_transport
        from ml_diagnostics_common.credentials import find_cloud

        from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane

        super().__init__(notes)
        cloud = find_cloud(project, environ=os.environ)
        self.region = region or _DEFAULT_REGION
        self.place = f"the project {cloud.project} ({self.region})"
        self.control_plane = GoogleControlPlane(
            cloud.project, self.region, cloud.credentials, principal=cloud.principal
        )
        self.transport: LoggingTransport = make_transport(cloud)
        self.entries = CloudEntries(self.transport, diagnostics_directory(), notes)
