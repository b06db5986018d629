"""The end of a process, from its own entries and those of its companion, for the story of its attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.story import Confidence, ProcessEnd, Role, Story, recorded_end

from google_cloud_mldiagnostics._reading.process_view import ProcessView, State
from google_cloud_mldiagnostics._run_state.attempts import is_end_missing

if TYPE_CHECKING:
    from ml_diagnostics_common.entry import LogEntry

__all__ = ["end_of", "first_cause"]


def end_of(process: ProcessView, by_companion: LogEntry | None) -> ProcessEnd:
    """Return the end of a process.

    Args:
        process: The process, with its state and its own reason.
        by_companion: The entry of its companion on its end, if there is one.
    """
    recorded = ProcessEnd(host=process.host)
    if by_companion is not None:
        recorded = recorded_end(by_companion.payload, by_companion.timestamp_ns, process.host)
    has_own = process.has_own_end and not is_end_missing(process.reason)
    is_failed = has_own and process.state is State.FAILED
    exception = (process.traceback[0].title if process.traceback else process.reason) if is_failed else ""
    if exception.startswith(("sys.exit", "SystemExit", "SIGTERM")):
        exception = ""
    how = recorded.how
    if is_failed and how in ("", "clean"):  # A program may record its failure, and exit with 0.
        how = "exception" if exception else "exit"
    elif has_own and not how:
        how = "clean"
    return recorded._replace(
        how=how,
        ended_ns=process.last_event_ns if has_own else recorded.ended_ns,
        exception=exception or recorded.exception,
        exit_code=None if is_failed and not recorded.exit_code else recorded.exit_code,
        was_asked="SIGTERM" in process.reason,
        is_silent=not how and (process.is_gone or process.state is State.STALE or is_end_missing(process.reason)),
    )


def first_cause(processes: Sequence[ProcessView], story: Story) -> str:
    """Return the sentence on the first cause of a failed attempt of several processes; empty if there is none."""
    first = [processes[index] for index in story.first]
    if not first or story.confidence is None:
        return ""
    sentence = " and ".join(process.name for process in first[:3])
    if len(first) > 3:
        sentence = f"{first[0].name} and {len(first) - 1} others"
    reason = first[0].reason
    others = sum(role is Role.CASCADE for role in story.roles)
    if story.confidence is Confidence.LIKELY and len({process.reason for process in first}) > 1:
        reason = f"the clocks of these hosts do not show which failed first: {reason}"
    if story.roles[story.first[0]] is Role.CLEAN:
        reason = "ended while others continued, and may have caused their failure"
    elif story.roles[story.first[0]] is Role.CASCADE:
        return f"{sentence}: {reason}"
    elif others:
        verb = "may have failed" if story.confidence is Confidence.POSSIBLE else "failed"
        reason += f"; {others} other{'s' if others > 1 else ''} {verb} because of it"
    return f"{sentence}: {reason}"
