"""The end of a process, from its own entries and those of its companion, for the story of its attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.story import Confidence, ProcessEnd, Role, Story

from google_cloud_mldiagnostics._reading.process_view import ProcessView, State
from google_cloud_mldiagnostics._reading.run_history import natural_number
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
    payload: Mapping[str, Any] = by_companion.payload if by_companion is not None else {}
    has_own = process.has_own_end and not is_end_missing(process.reason)
    is_failed = has_own and process.state is State.FAILED
    exception = (process.traceback[0].title if process.traceback else process.reason) if is_failed else ""
    if exception.startswith(("sys.exit", "SystemExit", "SIGTERM")):
        exception = ""
    ended_ns: int | None = None
    if has_own:
        ended_ns = process.last_event_ns
    elif by_companion is not None:
        ended_ns = natural_number(payload.get("ended_ns")) or by_companion.timestamp_ns
    how = str(payload.get("how", ""))
    if is_failed and how in ("", "clean"):  # A program may record its failure, and exit with 0.
        how = "exception" if exception else "exit"
    elif has_own and not how:
        how = "clean"
    exit_code = natural_number(payload.get("exit_code"))
    return ProcessEnd(
        how=how,
        ended_ns=ended_ns,
        exception=exception or _exception_of(payload),
        signal=str(payload.get("signal") or ""),
        exit_code=None if is_failed and not exit_code else exit_code,
        host=process.host,
        was_asked="SIGTERM" in process.reason,
        was_ended=payload.get("ended_by") == "fast_fail",
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


def _exception_of(payload: Mapping[str, Any]) -> str:
    kind, text = str(payload.get("exception") or ""), str(payload.get("exception_text") or "")
    if not kind or kind == "SystemExit":
        return ""
    return f"{kind}: {text}" if text else kind
