"""The doctor's verdict on a run, for its page."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_console._web.answers import Answer, json_answer
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.verdict_answer import without_verdict

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console._web.store import Store

__all__ = ["verdict"]

_CLOUD_NAME: Final = re.compile(r"projects/([^/]+)/locations/([^/]+)/.+")
"""The names of runs that a project of Google Cloud keeps."""


def verdict(run: RunData, query: Query, store: Store) -> Answer:
    """Answer the verdict if it is known, also of some seconds ago; else that it is being worked out."""
    of_cloud = _CLOUD_NAME.fullmatch(str(run.resource.get("name", "")))
    return json_answer(_ask_on_the_command_line(run.id, *of_cloud.groups()) if of_cloud else store.doctor.ask(run))


def _ask_on_the_command_line(run_id: str, project: str, region: str) -> dict[str, Any]:
    """Return how to ask about a run of a cloud: a view of a page sends no request there."""
    command = shlex.join(["mldiagnostics", "doctor", run_id, "--project", project, "--region", region])
    return without_verdict(next=[{"command": command, "why": "the page sends no requests to Cloud Logging"}])
