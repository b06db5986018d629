"""C6: a process ended well, or by exit code 0, though the others went on and needed it."""

from __future__ import annotations

from typing import Final, NamedTuple

from ml_diagnostics_common.story import Confidence, Role
from ml_diagnostics_common.texts import format_count

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.asked import asked_of
from ml_diagnostics_console._rules.causes import Cause
from ml_diagnostics_console._rules.crashes import crash, logs_around
from ml_diagnostics_console._rules.leads import Lead, lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console.verdict import Blame, Ref

__all__ = ["RULE"]

_OF_A_STEP: Final = frozenset({"step", "sync", "data"})
_IN_STEPS: Final = _OF_A_STEP | {""}
"""A process that saves, evaluates or ends at its own pace does not wait for one that left."""
_CLOCKS_SECONDS: Final = 1.0


class _Left(NamedTuple):
    """Processes that left, and those that needed them."""

    processes: tuple[ProcessFacts, ...]
    waiting: tuple[ProcessFacts, ...]
    refs: tuple[Ref, ...]


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a process that left its job."""
    lead, attempt = lead_of(facts), facts.attempt
    if attempt is None or (lead is not None and lead.cause is not Cause.LEFT):
        return None
    if lead is None and facts.is_live and _is_being_stopped(attempt):
        return None  # Those that ended did as they were asked: that is a verdict of C4.
    left = _left(attempt, lead)
    if left is None:
        return None
    process = left.processes[0]
    planned = max((each.planned_steps or 0 for each in attempt.processes), default=0)
    step = process.step
    is_early = bool(planned) and step is not None and step < planned - 1
    is_behind = step is not None and any(_is_in_or_after(each, step) for each in left.waiting)
    left_inside = process.end.how == "exit"  # os._exit: the block was never left.
    confidence = Confidence.LIKELY if is_early or is_behind or left_inside else Confidence.POSSIBLE
    how = "with exit code 0" if process.end.exit_code == 0 or left_inside else "without an error"
    after = f" {how}, though {_others(len(left.waiting))} went on"
    if is_early and step is not None:
        after += f": {planned:,} steps were planned"
    after += _by_handler(process)
    only = Lead(Cause.LEFT, left.processes, (), confidence)
    return crash(
        facts,
        only,
        "C6",
        "left",
        after=after,
        blame=Blame.USER,
        confidence=confidence,
        refs=(*process.end_refs[:1], *left.refs),
        commands=[logs_around(facts, process, "see why it ended")],
    )


def _is_being_stopped(attempt: AttemptFacts) -> bool:
    """Return True if a process that still runs was asked to stop at a known time."""
    running = (asked_of(process) for process in attempt.processes if not process.has_ended)
    return any(asked is not None and asked.time_ns is not None for asked in running)


def _left(attempt: AttemptFacts, lead: Lead | None) -> _Left | None:
    """Return the processes that left while the others failed or waited in a step; None if there are none.

    Those that end well while one ends badly are mostly the healthy ones: only a minority can have left.
    """
    clean = lead.processes if lead is not None else _of_role(attempt, Role.CLEAN)
    left = {(process.host, process.pid) for process in clean}
    others = [process for process in attempt.processes if (process.host, process.pid) not in left]
    if not clean or len(clean) > len(others):
        return None
    if lead is not None:
        failed = [process for process in others if process.role is not Role.CLEAN]
        refs = [ref for process in failed for ref in (process.end_refs or tuple(h.ref for h in process.hangs))[:1]]
        return _Left(clean, tuple(failed), tuple(refs[:2]))
    left_ns = min((process.end.ended_ns or process.last_event_ns for process in clean), default=0)
    stuck = [(process, hang) for process in others for hang in process.hangs[-1:] if hang.phase in _IN_STEPS]
    waiting = [(process, hang) for process, hang in stuck if hang.time_ns >= left_ns - _CLOCKS_SECONDS * 1e9]
    if not waiting or len(waiting) < len(others):
        return None
    in_order = sorted(clean, key=lambda process: process.end.ended_ns or process.last_event_ns)
    return _Left(tuple(in_order), tuple(process for process, _ in waiting), tuple(hang.ref for _, hang in waiting)[:2])


def _is_in_or_after(process: ProcessFacts, step: int) -> bool:
    """Return True if a process needed the one that left at a step: it was in that step, or a later one."""
    if process.step is None or process.step < step:
        return False
    return process.step > step or process.last_phase in _OF_A_STEP


def _by_handler(process: ProcessFacts) -> str:
    """Return that a handler of SIGTERM in Python may have ended the process: the request itself is not recorded."""
    last = process.sigterm_handlers[-1] if process.sigterm_handlers else None
    if process.end_fields.get("sigterm_handler") != "python" and (last is None or last.handler != "python"):
        return ""
    name = f" ({last.function})" if last is not None and last.function else ""
    return f"; possibly it was asked to stop, and its handler of SIGTERM{name} ended it"


def _of_role(attempt: AttemptFacts, role: Role) -> tuple[ProcessFacts, ...]:
    return tuple(process for process in attempt.processes if process.role is role)


def _others(count: int) -> str:
    return "another process" if count == 1 else format_count(count, "other")


RULE = Rule(
    id="C6",
    title="a process left though the others went on",
    needs=(
        "the ends of all processes: `with diagnose(...)`",
        "to be sure: `planned_steps` of machinelearning_run or GoodputRecorder",
    ),
    judge=_judge,
    thresholds=(
        Threshold("hang verdict before the end that explains it, at most (s)", _CLOCKS_SECONDS, "clocks of two hosts"),
    ),
    example="host host-1 left at step 30 (16:02:11 UTC) with exit code 0, though 3 others went on: 1,000 steps were "
    "planned; the 3 others failed because of it",
    replaces=("U0", "K1", "K1s", "K2"),
)
