"""The verdict at the end of a rehearsal: its own findings, and what the doctor reads in the job's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from google_cloud_mldiagnostics.exceptions import RunNotFoundError
from google_cloud_mldiagnostics.reading import LocalSource
from ml_diagnostics_common.command.errors import NotFoundError

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.report import Report

__all__ = ["examined"]

_RECENT_RUNS: Final = 8


def examined(job: str, started_ns: int, pods: Mapping[int, str], report: Callable[[str], None]) -> Report | None:
    """Return what the doctor finds of a job in the diagnostics folder of this process; None if nothing was recorded.

    Args:
        job: The job's name, for one that started no run.
        started_ns: When the rehearsal started: earlier runs are others.
        pods: The names of pods by the index of their processes, since all have the host name of this machine.
        report: Prints a note on what cannot be read.
    """
    views = LocalSource(report).views(None, _RECENT_RUNS)
    runs = [view.run_id for view in views if view.last_event_ns is not None and view.last_event_ns >= started_ns]
    try:
        facts = JobReader(Question(runs[0] if runs else job, kubernetes="off"), report).read()
    except (RunNotFoundError, NotFoundError):
        return None
    return judge(_named(facts, pods))


def _named(facts: Facts, pods: Mapping[int, str]) -> Facts:
    """Return the facts with the names of pods."""

    def name(attempt: AttemptFacts) -> AttemptFacts:
        processes = (
            replace(process, shown_name=pods.get(process.index, process.shown_name))
            if process.index is not None
            else process
            for process in attempt.processes
        )
        return replace(attempt, processes=tuple(processes))

    return replace(facts, attempts=tuple(name(attempt) for attempt in facts.attempts))
