"""The verdict on a process that failed first: what all rules on crashes have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ml_diagnostics_common.story import Confidence, Role
from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import exit_code_of, is_fallout, signal_of, titles
from ml_diagnostics_console._rules.costs import cost_of_failure
from ml_diagnostics_console._rules.leads import Lead
from ml_diagnostics_console._rules.wording import at, command_line, consequences, hosts_of, indices_of, named, quoted
from ml_diagnostics_console.verdict import Blame, NextCommand, Part, Ref, Verdict, VerdictClass

__all__ = ["command", "crash", "error_of", "logs_around", "subject"]

_LEVELS: Final = (Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE)
_MOST_NAMED: Final = 3


def crash(
    facts: Facts,
    lead: Lead,
    rule: str,
    what: str,
    *,
    blame: Blame,
    after: str = "",
    confidence: Confidence = Confidence.PROVEN,
    verdict_class: VerdictClass = VerdictClass.CRASH,
    step: int | None = None,
    refs: Sequence[Ref] = (),
    commands: Sequence[NextCommand] = (),
    part: Part = Part.INITIATING,
) -> Verdict:
    """Return the verdict of a rule on a failure.

    Args:
        facts: The facts.
        lead: The processes that failed first.
        rule: The rule's id.
        what: The event, as it follows their names: `ran out of host memory`.
        blame: The side that has to act.
        after: The text that follows step and time, with its own punctuation: `: ValueError: x`.
        confidence: The certainty of what happened; that of the first cause limits it.
        verdict_class: The class.
        step: The step; None takes that of the first process.
        refs: Further entries that show it; before the entries on the end.
        commands: The next commands.
        part: Its part.
    """
    process, attempt = lead.process, facts.attempt
    shown_step = step_of(process) if step is None else step
    certainty = max(confidence, lead.confidence, key=_LEVELS.index)
    possibly = "possibly " if certainty is Confidence.POSSIBLE and "possibly" not in what else ""
    when = at(shown_step, process.end.ended_ns)
    followed = _consequences(attempt, lead) if attempt is not None else ""
    total = len(attempt.processes) if attempt is not None else 0
    sentence = f"{subject(lead, total)} {possibly}{what}{' ' if when else ''}{when}{after}{_together(lead)}{followed}"
    started_ns = process.end.ended_ns or process.last_event_ns or None
    loss = cost_of_failure(facts, started_ns)
    return Verdict(
        rule=rule,
        verdict_class=verdict_class,
        sentence=sentence,
        blame=blame,
        confidence=certainty,
        part=part,
        hosts=hosts_of(lead.processes),
        process_indices=indices_of(lead.processes),
        step=shown_step,
        since_ns=started_ns,
        ended_ns=attempt.ended_ns if attempt is not None else None,
        cost=loss.cost,
        evidence=_unique((*refs, *_of_ends(lead), *loss.refs)),
        next=tuple(commands),
    )


def subject(lead: Lead, total: int = 0) -> str:
    """Return the processes as the subject of a sentence: `host tpu-17`, `hosts a and b`, `all 4 processes`."""
    processes = lead.processes
    if (lead.is_whole_job or lead.is_common) and len(processes) > 1:
        return (
            f"all {len(processes)} processes" if len(processes) >= total else f"{len(processes)} of {total} processes"
        )
    return f"{'host' if len(processes) == 1 else 'hosts'} {named(processes)}"


def step_of(process: ProcessFacts) -> int | None:
    """Return the step in which a process ended."""
    step = process.end_fields.get("step")
    own = step if type(step) is int and step >= 0 else None
    return max((each for each in (own, process.step) if each is not None), default=None)


def error_of(process: ProcessFacts) -> str:
    """Return the exit reason of a process as a short text: its exception, its signal or its exit code."""
    text = next(iter(titles(process)), "")
    if text:
        return quoted(text).rstrip(" .:;")
    signal, code = signal_of(process), exit_code_of(process)
    if process.end.how == "out_of_memory":
        return "out of memory"
    return signal or (f"exit code {code}" if code is not None else process.end.how or "no end recorded")


def command(facts: Facts, text: str, why: str) -> NextCommand:
    """Return a command with RUN replaced by the name of the run."""
    return NextCommand(text.replace("RUN", command_line(facts.name), 1), why)


def logs_around(facts: Facts, process: ProcessFacts, why: str = "read what it printed before") -> NextCommand:
    """Return the command that shows the lines of a host around the step in which it ended."""
    step = step_of(process)
    around = "" if step is None else f" --around 'step {step}'"
    return command(facts, f"mldiagnostics logs RUN --host {command_line(process.host)}{around}", why)


def _of_ends(lead: Lead) -> Iterable[Ref]:
    for process in (*lead.processes[:_MOST_NAMED], *lead.others[:_MOST_NAMED]):
        yield from process.end_refs
        if isinstance(process.last_step, Fact):
            yield from process.last_step.refs[:1]


def _unique(refs: Iterable[Ref]) -> tuple[Ref, ...]:
    return tuple(dict.fromkeys(refs))


def _together(lead: Lead) -> str:
    """Return the other processes that ended at about the same time: clocks do not show the first one."""
    if lead.is_whole_job or lead.is_common:
        return ""
    times = [process.end.ended_ns for process in (*lead.processes, *lead.others) if process.end.ended_ns is not None]
    within = f" within {format_duration((max(times) - min(times)) / 1e9)}" if len(times) > 1 else ""
    if lead.others:
        shown = ", ".join(f"{process.name} ({error_of(process)})" for process in lead.others[:_MOST_NAMED])
        left = len(lead.others) - _MOST_NAMED
        more = f" and {format_count(left, 'other')}" if left > 0 else ""
        return f"; {shown}{more} ended{within} of it, and the clocks do not show which was first"
    if len(lead.processes) > 1:
        return f"; all of them{within}, and the clocks do not show which was first"
    return ""


def _consequences(attempt: AttemptFacts, lead: Lead) -> str:
    """Return what became of the others; empty where there are none."""
    if lead.is_common and len(lead.processes) >= len(attempt.processes):
        return ""
    has_fallout = any(is_fallout(process) for process in attempt.processes)
    of_story = "" if has_fallout else consequences(attempt)
    if of_story or lead.is_whole_job:
        return of_story
    names = {(process.host, process.pid) for process in (*lead.processes, *lead.others)}
    others = [process for process in attempt.processes if (process.host, process.pid) not in names]
    waiting = [process for process in others if not process.has_ended]
    fallout = [process for process in others if is_fallout(process)]
    failed = [process for process in others if process.role in (Role.CASCADE, Role.TEARDOWN) and process not in fallout]
    parts = []
    if fallout:
        parts.append(f"fast-fail ended {_many(fallout, others)}")
    if failed:
        parts.append(f"{_many(failed, others)} failed because of it")
    if waiting and attempt.ended_ns is None:
        parts.append(f"{_many(waiting, others)} wait{'s' if len(waiting) == 1 else ''} for it")
    return "".join(f"; {part}" for part in parts)


def _many(some: Sequence[ProcessFacts], others: Sequence[ProcessFacts]) -> str:
    if len(some) < len(others):
        return format_count(len(some), "other")
    return "the other process" if len(some) == 1 else f"the {len(some)} others"
