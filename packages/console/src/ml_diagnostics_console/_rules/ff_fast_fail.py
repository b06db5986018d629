"""FF: fast-fail ended the other processes. The verdict is on the first cause, never on exit code 76."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import is_fallout
from ml_diagnostics_console._rules.costs import cost_of_failure
from ml_diagnostics_console._rules.crashes import command
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.wording import at, hosts_of, indices_of, quoted
from ml_diagnostics_console.verdict import Blame, Part, Verdict, VerdictClass

__all__ = ["RULE"]

_CONFIDENCES: Final = {level.value: level for level in Confidence}
_MOST_NAMED: Final = 2


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on an attempt that fast-fail ended."""
    attempt, lead = facts.attempt, lead_of(facts)
    if attempt is None:
        return None
    ended = [process for process in attempt.processes if is_fallout(process)]
    if not ended:
        return None
    if lead is not None:  # Another rule names the first cause by its own records.
        return _ended(facts, attempt, ended, lead.process.end.ended_ns)
    causes = (process.end_fields.get("first_cause") for process in ended)
    cause = next((each for each in causes if isinstance(each, Mapping)), None)
    return _ended(facts, attempt, ended, None) if cause is None else _first_cause(facts, attempt, ended, cause)


def _ended(facts: Facts, attempt: AttemptFacts, ended: list[ProcessFacts], failed_ns: int | None) -> Verdict:
    """Return that fast-fail ended the others: no failure of their own."""
    last_ns = max((process.end.ended_ns for process in ended if process.end.ended_ns), default=None)
    late = None if last_ns is None or failed_ns is None else (last_ns - failed_ns) / 1e9
    within = f" {format_duration(late)} after the first failure" if late and late > 0 else ""
    return Verdict(
        rule="FF",
        verdict_class=VerdictClass.CRASH,
        sentence=f"fast-fail ended {_processes(len(ended))}{within}: their exit code is not a failure of their own",
        blame=None,
        confidence=Confidence.PROVEN,
        part=Part.TEARDOWN,
        hosts=hosts_of(ended),
        process_indices=indices_of(ended),
        since_ns=last_ns,
        ended_ns=attempt.ended_ns,
        evidence=tuple(ref for process in ended[:3] for ref in process.end_refs[:1]),
        next=(command(facts, "mldiagnostics show RUN", "see the ends of all processes"),),
    )


def _first_cause(facts: Facts, attempt: AttemptFacts, ended: list[ProcessFacts], cause: Mapping[str, Any]) -> Verdict:
    """Return the first cause as fast-fail recorded it on the processes that it ended: its own records are missing."""
    hosts = [quoted(str(host)) for host in _list(cause.get("hosts"))]
    indices = tuple(index for index in _list(cause.get("process_indices")) if type(index) is int)
    step, ended_ns = _natural(cause.get("step")), _natural(cause.get("ended_ns"))
    names = hosts or [f"process {index}" for index in indices]
    shown = (
        " and ".join(names[:_MOST_NAMED]) if len(names) <= _MOST_NAMED else f"{names[0]} and {len(names) - 1} others"
    )
    subject = f"host{'s' if len(hosts) > 1 else ''} {shown}" if hosts else shown or "a process"
    when = at(step, ended_ns)
    exception, signal, code = (cause.get(name) for name in ("exception", "signal", "exit_code"))
    how = str(exception or signal or (f"exit code {code}" if code is not None else cause.get("how") or ""))
    loss = cost_of_failure(facts, ended_ns)
    confidence = _CONFIDENCES.get(str(cause.get("confidence")), Confidence.POSSIBLE)
    possibly = "possibly " if confidence is Confidence.POSSIBLE else ""
    refs = tuple(ref for process in ended[:2] for ref in process.end_refs[:1])
    return Verdict(
        rule="FF",
        verdict_class=VerdictClass.CRASH,
        sentence=f"{subject} {possibly}failed first{' ' if when else ''}{when}{f': {quoted(how)}' if how else ''}; "
        f"fast-fail then ended {_processes(len(ended))}, and the first one has recorded nothing itself",
        blame=Blame.USER if exception else Blame.UNKNOWN,
        confidence=confidence,
        hosts=tuple(hosts),
        process_indices=indices,
        step=step,
        since_ns=ended_ns,
        ended_ns=attempt.ended_ns,
        cost=loss.cost,
        evidence=(*refs, *loss.refs),
        next=(command(facts, "mldiagnostics show RUN", "see the ends of all processes"),),
    )


def _processes(count: int) -> str:
    return format_count(count, "other process", "other processes")


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _natural(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


RULE = Rule(
    id="FF",
    title="fast-fail ended the other processes",
    needs=("fast-fail, which is off by default: ML_DIAGNOSTICS_FAST_FAIL=1",),
    judge=_judge,
    example="fast-fail ended 63 other processes 1.10 s after the first failure: their exit code is not a failure of "
    "their own",
    replaces=("U0",),
)
