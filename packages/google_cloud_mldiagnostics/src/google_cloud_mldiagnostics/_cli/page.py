"""A run as the command `mldiagnostics show` shows it: read once, as text, as data and as HTML."""

from __future__ import annotations

import time
from typing import Any, Final

from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.files import in_bucket

from google_cloud_mldiagnostics._cli.metric_output import format_summaries, in_order, metrics_as_dicts
from google_cloud_mldiagnostics._cli.run_output import format_run, run_as_dict
from google_cloud_mldiagnostics._profiling.locations import session_folder
from google_cloud_mldiagnostics._reading.metric_series import MetricSeries, Series
from google_cloud_mldiagnostics._reading.run_history import RunHistory
from google_cloud_mldiagnostics._reading.run_source import RunSource
from google_cloud_mldiagnostics._reading.run_view import RunView
from google_cloud_mldiagnostics._reading.session_view import HostProfile, SessionView

__all__ = ["RunPage"]

_FOLDER_SECONDS: Final = 10.0


class RunPage:
    """A run, as it was when it was read; notebooks show it.

    Attributes:
        view: The run.
    """

    def __init__(self, view: RunView, by_metric: dict[str, list[Series]], where: list[tuple[str, str]]) -> None:
        """Wrap what was read; `run_page` reads it."""
        self.view = view
        self._by_metric, self._where = by_metric, where

    @classmethod
    def read(cls, source: RunSource, name: str) -> RunPage:
        """Read a run.

        Args:
            source: Has the runs.
            name: The run's id, the start of it, or `last`.

        Raises:
            RunNotFoundError: No run or several runs match.
            ControlPlaneError: The request to the control plane failed.
        """
        run = source.find(name)
        history, series = RunHistory(), MetricSeries()
        for batch in source.entries.overview(run):
            history.add(batch)
            series.add(batch)
        view = source.view(run, history)
        view.sessions += _profiles_of_others(view, source)
        link = source.control_plane.link(str(run["name"]))
        return cls(view, in_order(series), [("link" if "://" in link else "folder", link)])

    def as_text(self, width: int | None = None) -> str:
        """Return the page as text.

        Args:
            width: The columns of the terminal; None if there is no limit.
        """
        metrics = format_summaries(self._by_metric, width) if self._by_metric else []
        return format_run(self.view, metrics, self._where, time.time_ns(), width)

    def as_dict(self) -> dict[str, Any]:
        """Return the page in the types of JSON: what `mldiagnostics show --format json` prints."""
        return {**run_as_dict(self.view), **dict(self._where), "metrics": metrics_as_dicts(self._by_metric)}

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return f"<RunPage of {self.view.run_id!r}: {self.view.state.value}>"

    def _repr_html_(self) -> str:
        from google_cloud_mldiagnostics._cli.html import format_html

        return format_html(self.view, self._by_metric, self._where, time.time_ns())


def _profiles_of_others(view: RunView, source: RunSource) -> list[SessionView]:
    """Return the profiles in a run's folder that none of its processes recorded, such as an operator's."""
    if not view.gcs_path or (in_bucket(view.gcs_path) and not source.has_credentials):
        return []
    from google_cloud_mldiagnostics._profiling.sessions import sessions_in

    logdir = f"{view.gcs_path}/{view.run_id}"
    try:
        found = sessions_in(logdir, deadline_seconds=_FOLDER_SECONDS)
    except DiagnosticsError as error:
        source.report(f"profiles that other programs took are not shown: {error}")
        return []
    known = {session.session_id for session in view.sessions}
    return [
        SessionView(
            session_id,
            kind="on_demand",
            folder=session_folder(logdir, session_id),
            hosts=[HostProfile(host, None, "SUCCEEDED") for host in hosts],
        )
        for session_id, hosts in sorted(found.items())
        if session_id not in known
    ]
