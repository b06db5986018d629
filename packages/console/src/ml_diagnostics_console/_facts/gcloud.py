"""gcloud, asked for the findings of Google's analyzers on a run.

`gcloud alpha mldiagnostics monitored-events` is an alpha command: most installations do not have it, and then nothing
is known.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final

from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.monitored_events import MonitoredEvent, parse_event
from ml_diagnostics_console._facts.programs import Answer, ProgramError, ask

__all__ = ["read_monitored_events"]

_TIMEOUT_SECONDS: Final = 30.0
_LONGEST_CALL_SECONDS: Final = 15.0
_MOST_BYTES: Final = 4 * 2**20
_MOST_EVENTS: Final = 50
_MOST_DETAILS: Final = 5
"""The most events of which the reports are read: each is a call of gcloud, of about a second."""
_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:]{0,254}")
_GROUP: Final = "gcloud alpha mldiagnostics monitored-events"


def read_monitored_events(
    run_id: str, project: str, region: str, *, timeout_seconds: float = _TIMEOUT_SECONDS
) -> Fact[tuple[MonitoredEvent, ...]] | Unknown:
    """Return the events that Google's monitoring detected in a run, the newest first.

    Args:
        run_id: The id of the run.
        project: Its project.
        region: Its region; empty for the usual one.
        timeout_seconds: The most time for everything.
    """
    deadline = time.monotonic() + timeout_seconds
    region = region or "us-central1"
    for name in (run_id, project, region):
        if not _NAME.fullmatch(name):
            return Unknown(f"{name!r} is not a valid name of a run, a project or a region")
    options = [
        f"--location={region}",
        f"--machine-learning-run={run_id}",
        f"--project={project}",
        "--format=json",
        "--quiet",
    ]
    try:
        found = _call(["list", *options, f"--limit={_MOST_EVENTS}"], deadline)
    except ProgramError as error:
        return Unknown(str(error))
    documents = found if isinstance(found, list) else []
    events = [event for document in documents[:_MOST_EVENTS] if (event := parse_event(document)) is not None]
    events.sort(key=lambda event: event.since_ns or 0, reverse=True)
    wanted = {event.id for event in events if event.has_insight and not event.reports}
    detailed = {event_id: _described(event_id, options, deadline) for event_id in sorted(wanted)[:_MOST_DETAILS]}
    events = [detailed.get(event.id) or event for event in events]
    return Fact(tuple(events), tuple(event.ref for event in events), time.time_ns())


def _described(event_id: str, options: list[str], deadline: float) -> MonitoredEvent | None:
    """Return an event with the reports of analyzers, which a list may leave out; None if that cannot be read."""
    try:
        return parse_event(_call(["describe", event_id, *options], deadline)) if _NAME.fullmatch(event_id) else None
    except ProgramError:
        return None


def _call(arguments: list[str], deadline: float) -> Any:
    """Return the JSON that gcloud prints.

    Raises:
        ProgramError: There is none; the message has the remedy.
    """
    left = min(_LONGEST_CALL_SECONDS, deadline - time.monotonic())
    if left <= 0:
        raise ProgramError("there was no time left to ask gcloud for monitored events")
    argv = [*_GROUP.split(), *arguments]
    try:
        answer = ask(argv, timeout_seconds=left, most_bytes=_MOST_BYTES)
    except ProgramError as error:
        raise ProgramError(f"Google's monitored events were not read: {error}") from error
    if answer.exit_code:
        raise ProgramError(_refusal(answer))
    try:
        return json.loads(answer.output or b"[]")
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"Google's monitored events were not read: gcloud printed no JSON ({error})") from error


def _refusal(answer: Answer) -> str:
    errors = answer.errors
    if re.search(
        r"Invalid choice|not found in|You do not currently have this command group|alpha.{0,40}component", errors
    ):
        return f"this gcloud has no `{_GROUP}`: it may come with `gcloud components install alpha` and an update"
    if re.search(r"active account|gcloud auth login|reauth|credentials", errors):
        return "Google's monitored events were not read: log in with `gcloud auth login`"
    if re.search(r"PERMISSION_DENIED|permission", errors):
        return "Google's monitored events were not read: ask for the role roles/hypercomputecluster.viewer"
    last = errors.splitlines()[-1] if errors else f"exit code {answer.exit_code}"
    return f"Google's monitored events were not read: {one_line(last, 240)}"
