"""The runs of a control plane: those that are new, have changed or are gone since the last read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from google_cloud_mldiagnostics.control_plane import resource_id
from google_cloud_mldiagnostics.exceptions import ControlPlaneError
from google_cloud_mldiagnostics.reading import LocalSource, RunSource

from ml_diagnostics_console._web.run_data import Resource

__all__ = ["ChangedRuns", "RunList"]


class ChangedRuns(NamedTuple):
    """Runs that have changed.

    Attributes:
        changed: The runs that are new or have changed, by id.
        gone: The ids of those that are not there any more.
    """

    changed: dict[str, Resource]
    gone: list[str]


class RunList:
    """Reads the runs of a source; of those of this machine only files that have changed.

    Args:
        source: The source.

    Attributes:
        notes: Sentences on what could not be read at the last time.
    """

    def __init__(self, source: RunSource) -> None:
        self.notes: list[str] = []
        self._source = source
        self._known: dict[str, object] = {}
        self._damaged: dict[str, tuple[object, str]] = {}

    def read(self) -> ChangedRuns:
        """Return what has changed since the last call. What cannot be read becomes a note, and stays as it was."""
        self.notes = []
        try:
            return self._read_local(self._source) if isinstance(self._source, LocalSource) else self._read_all()
        except (ControlPlaneError, OSError) as error:
            self.notes.append(f"The runs could not be read: {error}")
            return ChangedRuns({}, [])

    def _read_all(self) -> ChangedRuns:
        runs = {resource_id(run): run for run in self._source.control_plane.list_runs()}
        changed = {run_id: run for run_id, run in runs.items() if self._known.get(run_id) != run}
        gone = self._forget_others(runs)
        self._known.update(changed)
        return ChangedRuns(changed, gone)

    def _read_local(self, source: LocalSource) -> ChangedRuns:
        plane = source.control_plane
        stamps = plane.stamps()
        if not stamps and self._known and not plane.runs_folder.is_dir():
            self.notes.append(f"The folder {plane.runs_folder} does not exist any more: what was read before is shown.")
            return ChangedRuns({}, [])
        changed: dict[str, Resource] = {}
        for run_id, stamp in stamps.items():
            if stamp in (self._known.get(run_id), self._damaged.get(run_id, (None, ""))[0]):
                continue
            try:
                resource: Resource = plane.get_run(run_id)
            except (ControlPlaneError, OSError) as error:
                self._damaged[run_id] = stamp, str(error)
                continue
            changed[run_id] = {**resource, "name": run_id}
            self._known[run_id] = stamp
            self._damaged.pop(run_id, None)
        self._damaged = {run_id: known for run_id, known in self._damaged.items() if run_id in stamps}
        if self._damaged:
            number = len(self._damaged)
            which = "A run" if number == 1 else f"{number:,} runs"
            self.notes.append(f"{which} cannot be shown: {next(iter(self._damaged.values()))[1]}")
        return ChangedRuns(changed, self._forget_others(stamps))

    def _forget_others(self, present: Mapping[str, object]) -> list[str]:
        gone = [run_id for run_id in self._known if run_id not in present]
        for run_id in gone:
            del self._known[run_id]
        return gone
