"""U0: something is wrong, and the records do not show what: what is known, and what would show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from google_cloud_mldiagnostics.reading import State
from ml_diagnostics_common.story import Confidence, Role
from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts, Unknown
from ml_diagnostics_console._rules.asked import is_graceful
from ml_diagnostics_console._rules.causes import Cause
from ml_diagnostics_console._rules.costs import cost_of_failure
from ml_diagnostics_console._rules.crashes import command, error_of
from ml_diagnostics_console._rules.leads import ORDER_OF_ENDS, Lead, ended_while_stuck, lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stuck import Kind, missing_of, stuck_job
from ml_diagnostics_console._rules.wording import at, clock, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref, Verdict, VerdictClass

__all__ = ["RULE", "signs_of"]

_SILENT_SECONDS: Final = 180.0
_EXPLAINED: Final = frozenset(Cause) - {Cause.SILENT, Cause.CASCADE, Cause.LEFT}
_MOST_REFS: Final = 6


class Sign(NamedTuple):
    """Something that shows that a job is not well."""

    text: str
    refs: tuple[Ref, ...] = ()


def signs_of(facts: Facts) -> tuple[Sign, ...]:
    """Return what shows that something is wrong with the attempt that is judged; empty if nothing does."""
    attempt = facts.attempt
    if attempt is None:
        return ()
    lead = lead_of(facts)
    signs: list[Sign] = []
    if lead is not None and not is_graceful(facts, lead):
        refs = tuple(ref for process in lead.processes[:3] for ref in process.end_refs[:1])
        signs.append(Sign(f"{named(lead.processes)} ended: {error_of(lead.process)}", refs))
    elif lead is None:
        signs += _signs_of_ends(attempt)
    stuck = stuck_job(facts)
    if stuck is not None and stuck.kind is not Kind.COMPILING:
        since = clock(stuck.since_ns)
        signs.append(Sign(f"there was no progress since {since}", tuple(hang.ref for hang in stuck.hangs[:3])))
    signs += _silent(facts, attempt)
    return tuple(signs)


def _judge(facts: Facts) -> Judgement:
    """Return that something is wrong, if no other rule has an explanation for it."""
    attempt, lead, signs = facts.attempt, lead_of(facts), signs_of(facts)
    if attempt is None or not signs or (lead is not None and lead.cause in _EXPLAINED):
        return None
    if lead is not None and lead.cause is not Cause.LEFT:
        return _suspects(facts, attempt, lead)
    sentence = f"something is wrong, and the records do not show what: {'; '.join(sign.text for sign in signs[:3])}"
    return _verdict(facts, attempt, sentence, (), [ref for sign in signs for ref in sign.refs])


def _signs_of_ends(attempt: AttemptFacts) -> list[Sign]:
    """Return signs in the ends of processes where none of them is a first cause."""
    signs = []
    stuck = ended_while_stuck(attempt)
    outside = [
        process
        for position, process in enumerate(attempt.processes)
        if process.role is Role.TEARDOWN or position in stuck
    ]
    if outside:
        reason = " while the job made no progress" if stuck else ""
        refs = tuple(ref for process in outside[:3] for ref in process.end_refs[:1])
        count = format_count(len(outside), "process", "processes")
        signs.append(Sign(f"{count} ended from outside{reason}", refs))
    elif attempt.state is State.FAILED:
        signs.append(Sign(f"the run is recorded as failed{f': {attempt.reason}' if attempt.reason else ''}"))
    return signs


def _silent(facts: Facts, attempt: AttemptFacts) -> list[Sign]:
    """Return processes without an end that have recorded nothing for long, though the job goes on or has ended."""
    silent = [
        process
        for process in attempt.processes
        if not process.has_ended
        and (process.state is State.STALE or process.end.is_silent)
        and (facts.now_ns - process.last_event_ns) / 1e9 >= (_SILENT_SECONDS if facts.is_live else 0)
    ]
    if not silent:
        return []
    last_ns = max(process.last_event_ns for process in silent)
    verb = "has" if len(silent) == 1 else "have"
    refs = tuple(_last_event(process) for process in silent[:3])
    return [Sign(f"{named(silent)} {verb} recorded nothing since {clock(last_ns)}, and no end", refs)]


def _suspects(facts: Facts, attempt: AttemptFacts, lead: Lead) -> Verdict:
    """Return the verdict on processes that failed because of another one, none of which failed by itself."""
    failed = [process for process in attempt.processes if process.role is Role.CASCADE]
    refs = [ref for process in failed for ref in process.end_refs[:1]]
    missing, expected = missing_of(attempt)
    moment = at(lead.process.step, lead.process.end.ended_ns)
    if lead.cause is Cause.SILENT:
        silent = [_last_event(process) for process in lead.processes[:2]]
        return _verdict(facts, attempt, _silent_first(facts, lead, failed), lead.processes, [*silent, *refs])
    if missing or len(attempt.processes) < expected:
        absent = format_count(expected - len(attempt.processes), "process", "processes")
        which = f" (index {', '.join(map(str, missing[:5]))})" if missing else ""
        sentence = (
            f"{absent} of {expected}{which} recorded nothing, and possibly failed first: {_count(failed)} lost a "
            f"connection {moment}: {error_of(lead.process)}"
        )
        return _verdict(facts, attempt, sentence, (), refs)
    sentence = (
        f"{_count(failed)} lost another process, and none of them failed by itself; {_hosts(lead.processes)} possibly "
        f"ended first {moment}: {error_of(lead.process)}"
    )
    return _verdict(facts, attempt, sentence, lead.processes, refs)


def _silent_first(facts: Facts, lead: Lead, failed: Sequence[ProcessFacts]) -> str:
    process = lead.process
    seconds = max(0.0, (facts.now_ns - process.last_event_ns) / 1e9)
    end = "its end is" if len(lead.processes) == 1 else "their ends are"
    step = "" if process.step is None else f" {at(process.step, None)}"
    return (
        f"{_hosts(lead.processes)} possibly failed first{step}: {end} not recorded, and {_count(failed)} lost a "
        f"connection; the last event was at {clock(process.last_event_ns)}, {format_duration(seconds)} ago"
    )


def _last_event(process: ProcessFacts) -> Ref:
    shows = f"{process.name}: last event at {clock(process.last_event_ns)}, and no end"
    return Ref(f"{process.host}/{process.pid}", "run", process.last_event_ns, process.host, shows)


def _verdict(
    facts: Facts, attempt: AttemptFacts, sentence: str, processes: Sequence[ProcessFacts], refs: Sequence[Ref]
) -> Verdict:
    since_ns = processes[0].end.ended_ns or processes[0].last_event_ns if processes else None
    return Verdict(
        rule="U0",
        verdict_class=VerdictClass.UNKNOWN,
        sentence=sentence,
        blame=Blame.UNKNOWN,
        confidence=Confidence.POSSIBLE,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=attempt.best_step,
        since_ns=since_ns,
        ended_ns=attempt.ended_ns,
        cost=cost_of_failure(facts, since_ns).cost,
        evidence=tuple(dict.fromkeys(refs))[:_MOST_REFS],
        next=_would_show(facts, attempt),
    )


def _would_show(facts: Facts, attempt: AttemptFacts) -> tuple[NextCommand, ...]:
    """Return what to turn on so that the next failure is explained, and what can be read now."""
    commands = []
    if not any(process.end_fields or process.hangs or process.stacks for process in attempt.processes):
        commands.append(
            NextCommand("with diagnose(debug_config):", "records the exit reason and the stacks of each process")
        )
    if not any(process.console for process in attempt.processes):
        run = NextCommand("python -m cloud_tpu_diagnostics run -- COMMAND", "keeps the last lines and signals")
        commands.append(run)
    if isinstance(facts.kubernetes, Unknown):
        commands.append(command(facts, "mldiagnostics doctor RUN --kubernetes CONTEXT", "asks for evictions and nodes"))
    commands.append(command(facts, "mldiagnostics logs RUN", "read the last lines"))
    return tuple(commands)


def _hosts(processes: Sequence[ProcessFacts]) -> str:
    return f"host{'s' if len(processes) > 1 else ''} {named(processes)}"


def _count(failed: Sequence[ProcessFacts]) -> str:
    return format_count(len(failed), "process", "processes")


RULE = Rule(
    id="U0",
    title="something is wrong, and the records do not show what",
    needs=("the ends of all processes: `with diagnose(...)`, and machinelearning_run",),
    judge=_judge,
    thresholds=(
        Threshold(
            "time without an event, at least", f"{_SILENT_SECONDS:.0f} s", "a run's heartbeat is recorded each 60 s"
        ),
        *ORDER_OF_ENDS,
    ),
    example="host host-1 possibly failed first at step 30: its end is not recorded, and 3 processes lost a "
    "connection; the last event was at 16:02:11 UTC, 2 min 0 s ago",
)
