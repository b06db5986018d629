"""The outcome of a capture for each host, and its report: lines as the public command prints them, a table, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.formats import format_data, format_table
from ml_diagnostics_common.texts import format_bytes, format_duration
from ml_diagnostics_common.xplane import Xplane

from xprofiler.capture.session import Session
from xprofiler.capture.targets import Target

__all__ = ["Outcome", "report"]

_NO_EVENTS: Final = "its profile has no events: nothing ran meanwhile; check the job, or use a longer -d"
_HEADERS: Final = ("Host  ", "Status  ", "Size  ", "Start  ")
_LEAST_IMPORTANT: Final = ("Start  ", "Size  ", "Status  ")
_FIELDS: Final = ("host", "status", "problem", "path", "size_bytes", "start_ns")
_TOGETHER_MS: Final = 50


@dataclass(frozen=True)
class Outcome:
    """The outcome for one host.

    Attributes:
        name: The typed name, or one with the worker of a TPU slice.
        title: The name in messages.
        file_name: The name of its file, without `.xplane.pb`.
        problem: Why the profile is missing or has no events; empty on success.
        size_bytes: The size of its file.
        start_ns: The start of its profile in nanoseconds since 1970; 0 if not recorded.
        has_file: True if its complete file is in the session.
    """

    name: str
    title: str
    file_name: str = ""
    problem: str = ""
    size_bytes: int = 0
    start_ns: int = 0
    has_file: bool = False

    @classmethod
    def of(cls, target: Target, xplane: Xplane | None = None, problem: str = "") -> Outcome:
        """Return the outcome for a target.

        Args:
            target: The target.
            xplane: Its file, if that has been read.
            problem: Why its profile is missing.
        """
        if xplane is None:
            return cls(target.name, target.title, target.file_name, " ".join(problem.split()))
        reason = " ".join(problem.split()) or ("" if xplane.planes else _NO_EVENTS)
        about = (xplane.size_bytes, xplane.start_ns, not problem)
        return cls(target.name, target.title, target.file_name, reason, *about)

    @property
    def is_captured(self) -> bool:
        """True if the session has a profile with events from this host."""
        return not self.problem

    @property
    def status(self) -> str:
        """The status for tables: "captured", "no events" or "failed"."""
        return "captured" if self.is_captured else "no events" if self.has_file else "failed"


def report(outcomes: Sequence[Outcome], session: Session, saved_to: str, style: str, console: Console) -> None:
    """Print the outcome of each host.

    Args:
        outcomes: The outcomes of the hosts.
        session: The session with their files.
        saved_to: The folder to open in a viewer.
        style: One of `formats.FORMATS`; "table" prints messages for people.
        console: The console to print to.
    """
    for outcome in outcomes:
        console.notify(f"Starting profile capture on {outcome.title}.")
        if not outcome.is_captured:  # Includes a profile without events, which is useless.
            console.notify(f"Failed to profile host {outcome.name} with error: {outcome.problem}\n", is_progress=False)
        elif style == "table":
            console.data(f"Profile saved to {saved_to} and session id is {session.name}.\n")
    if style == "table":
        console.data(_table(outcomes, console.width))
    else:
        records = [_record(outcome, session) for outcome in outcomes]
        console.data(format_data(records, style, records, _FIELDS))
    note = _note(outcomes)
    if note:
        console.notify(f"\n{note}", is_progress=False)


def _note(outcomes: Sequence[Outcome]) -> str:
    """Return a note if the hosts started too far apart for their steps to be compared; empty otherwise."""
    started = sorted((outcome for outcome in outcomes if outcome.start_ns), key=lambda outcome: outcome.start_ns)
    apart_ms = (started[-1].start_ns - started[0].start_ns) / 1e6 if started else 0.0
    if apart_ms <= _TOGETHER_MS:
        return ""
    return (
        f"Note: by the hosts' own clocks {started[-1].name} started {apart_ms:,.0f} ms after {started[0].name}: their "
        "profiles do not cover the same time. Either the clocks differ (compare `date` on the hosts and here), or the "
        "connection to one was slow, or it was captured again after the others."
    )


def _table(outcomes: Sequence[Outcome], width: int | None) -> str:
    """Return a table with a row for each host: the size of its file, and how long after the first host it started."""
    first_ns = min((outcome.start_ns for outcome in outcomes if outcome.start_ns), default=0)
    rows = [_cells(outcome, first_ns) for outcome in outcomes]
    return "\n".join(format_table(_HEADERS, rows, width=width, cut=_LEAST_IMPORTANT))


def _cells(outcome: Outcome, first_ns: int) -> tuple[str, str, str, str]:
    if not outcome.has_file:
        return outcome.name, outcome.status, "", ""
    start = f"+{format_duration((outcome.start_ns - first_ns) / 1e9)}" if outcome.start_ns else ""
    return outcome.name, outcome.status, format_bytes(outcome.size_bytes), start


def _record(outcome: Outcome, session: Session) -> dict[str, object]:
    return {
        "host": outcome.name,
        "status": outcome.status,
        "problem": outcome.problem or None,
        "path": session.path_of(outcome.file_name) if outcome.has_file else None,
        "size_bytes": outcome.size_bytes if outcome.has_file else None,
        "start_ns": outcome.start_ns or None,
    }
