"""Requests to stop: SIGTERM as it was seen, what became of the process, and whether the job saved its state. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common.story import Role

from ml_diagnostics_console._facts.facts import SIGTERM_CAUGHT, Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import Cause, signal_of
from ml_diagnostics_console._rules.costs import attempt_of_ledger, report_of
from ml_diagnostics_console._rules.leads import Lead
from ml_diagnostics_console.verdict import Ref

__all__ = ["GRACE_SECONDS", "Asked", "Saved", "asked_of", "is_asked", "is_graceful", "saved_state"]

GRACE_SECONDS: Final = 30.0
"""Kubernetes kills a pod so long after SIGTERM, unless its terminationGracePeriodSeconds shows otherwise."""
_SIGTERM: Final = "SIGTERM"


class Asked(NamedTuple):
    """A request to stop.

    Attributes:
        time_ns: When it was received; None if that is not recorded.
        sender: The sender as it follows the signal; empty if it is not known.
        refs: The entries that show it.
    """

    time_ns: int | None
    sender: str
    refs: tuple[Ref, ...]


class Saved(enum.Enum):
    """True if the steps of a job were saved before its end, as far as that is recorded."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def asked_of(process: ProcessFacts) -> Asked | None:
    """Return the request to stop that a process received; None if none is recorded."""
    signal = next((signal for signal in process.signals if signal.name == _SIGTERM), None)
    if signal is not None:
        sender = "from outside of its container" if signal.sender_pid == 0 else f"from process {signal.sender_pid}"
        return Asked(signal.time_ns, sender, (signal.ref,))
    for console in process.console:
        line = next((line for line in console.text.splitlines() if SIGTERM_CAUGHT in line), None)
        if line is not None:
            return Asked(None, "", (console.ref._replace(shows=f"{process.name} wrote: {line.strip()[:120]}"),))
    if process.end.was_asked or signal_of(process) == _SIGTERM:
        return Asked(None, "", process.end_refs[:1])
    return None


def is_asked(facts: Facts) -> bool:
    """Return True if a process of the attempt that is judged was asked to stop."""
    return any(asked_of(process) is not None for process in facts.processes)


def saved_state(facts: Facts, process: ProcessFacts) -> tuple[Saved, str]:
    """Return if the job saved its last step before its end, with a sentence on it."""
    report, time_ns = report_of(facts), process.end.ended_ns or facts.now_ns
    summary = attempt_of_ledger(report, time_ns) if report is not None else None
    if summary is None:
        return Saved.UNKNOWN, ""
    last, checkpoint = summary.last_step, summary.last_checkpoint_step
    if checkpoint is not None and (last is None or checkpoint >= last - 1):
        return Saved.YES, f"step {checkpoint:,} was saved"
    if last is None:
        return Saved.UNKNOWN, ""
    since = "there is no checkpoint" if checkpoint is None else f"the last checkpoint is of step {checkpoint:,}"
    return Saved.NO, f"nothing was saved after the request: the last step is {last:,}, and {since}"


def is_graceful(facts: Facts, lead: Lead) -> bool:
    """Return True if all processes ended well after a request to stop: they saved, handled it, or were done anyway."""
    attempt = facts.attempt
    if attempt is None or lead.cause is not Cause.ASKED:
        return False
    processes = attempt.processes
    ended = [process for process in processes if process.has_ended]
    if not all(process.role in (Role.ASKED, Role.CLEAN) and _ended_well(process) for process in ended):
        return False
    if len(ended) < len(processes) and not _may_follow(facts, lead, processes):
        return False
    planned = max((process.planned_steps or 0 for process in processes), default=0)
    if planned and attempt.best_step is not None and attempt.best_step >= planned - 1:
        return True
    saved, _ = saved_state(facts, lead.process)
    is_handled = any(_last_handler(process) == "python" for process in processes)
    return saved is Saved.YES or (saved is Saved.UNKNOWN and is_handled)


def _may_follow(facts: Facts, lead: Lead, processes: Sequence[ProcessFacts]) -> bool:
    """Return True if the processes that have not ended may still do so, as they were asked as well."""
    ended_ns = lead.process.end.ended_ns
    if not facts.is_live or ended_ns is None or (facts.now_ns - ended_ns) / 1e9 > GRACE_SECONDS:
        return False
    return not any(hang.time_ns >= ended_ns for process in processes for hang in process.hangs)


def _ended_well(process: ProcessFacts) -> bool:
    end = process.end
    return end.how == "clean" or (end.how == "exit" and end.exit_code == 0)


def _last_handler(process: ProcessFacts) -> str:
    recorded = process.end_fields.get("sigterm_handler")
    if isinstance(recorded, str):
        return recorded
    return process.sigterm_handlers[-1].handler if process.sigterm_handlers else ""
