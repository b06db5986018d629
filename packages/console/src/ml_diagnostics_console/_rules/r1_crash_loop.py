"""R1: attempt after attempt ends by the same failure, and none gets further: a retry will not help."""

from __future__ import annotations

from typing import Final, NamedTuple

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts
from ml_diagnostics_console._rules.causes import Cause, fingerprint
from ml_diagnostics_console._rules.crashes import command, error_of, logs_around, step_of
from ml_diagnostics_console._rules.leads import Lead, lead_of_attempt
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import at, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, Cost, CostBasis, NextCommand, Verdict, VerdictClass

__all__ = ["RULE"]

_LEAST_ATTEMPTS: Final = 3
_MOST_ATTEMPTS: Final = 1_000
_FROM_OUTSIDE: Final = frozenset({Cause.ASKED, Cause.INTERRUPTED, Cause.SILENT, Cause.CASCADE, Cause.LEFT})
"""Preemptions repeat, and the next attempt may run through; the others are not known well enough."""
_LEVELS: Final = (Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE)


class _Failure(NamedTuple):
    """The failure of one attempt."""

    attempt: AttemptFacts
    lead: Lead
    text: tuple[str, str]
    where: frozenset[str]


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a job that fails repeatedly by the same cause."""
    if facts.judged is None:
        return None
    attempts = facts.attempts[: facts.judged + 1]
    running: AttemptFacts | None = None
    if facts.is_live and attempts[-1].ended_ns is None and _failure(facts, attempts[-1]) is None:
        *attempts, running = attempts  # type: ignore[assignment]
    loop = _loop(facts, attempts)
    if len(loop) < _LEAST_ATTEMPTS:
        return None
    best = _best(loop)
    if running is not None and running.best_step is not None and (best is None or running.best_step > best):
        return None
    return _verdict(facts, loop, running)


def _loop(facts: Facts, attempts: object) -> list[_Failure]:
    """Return the last attempts with the same failure, the oldest first, of which none got further than the first."""
    loop: list[_Failure] = []
    for attempt in reversed(list(attempts)[-_MOST_ATTEMPTS:]):  # type: ignore[call-overload]
        failure = _failure(facts, attempt)
        if failure is None:
            break
        if loop and (failure.text != loop[0].text or not failure.where & loop[0].where):
            break
        got = [each.attempt.best_step for each in loop if each.attempt.best_step is not None]
        if got and (attempt.best_step is None or max(got) > attempt.best_step):
            break  # A later one got further.
        loop.insert(0, failure)
    return loop


def _failure(facts: Facts, attempt: AttemptFacts) -> _Failure | None:
    lead = lead_of_attempt(facts, attempt)
    if lead is None or lead.cause in _FROM_OUTSIDE:
        return None
    # A pod of the next attempt has another name: the index of the process identifies it, where it is known.
    where = frozenset(
        process.host if process.index is None else str(process.index) for process in (*lead.processes, *lead.others)
    )
    return _Failure(attempt, lead, fingerprint(facts, lead.process), where)


def _best(loop: list[_Failure]) -> int | None:
    return max((each.attempt.best_step for each in loop if each.attempt.best_step is not None), default=None)


def _verdict(facts: Facts, loop: list[_Failure], running: AttemptFacts | None) -> Verdict:
    first, last = loop[0], loop[-1]
    process, count, best = last.lead.process, len(loop), _best(loop)
    seconds = _seconds(facts, loop)
    reached = "no step was made" if best is None else f"none got further than step {best:,}"
    same_host = {each.lead.process.name for each in loop}
    where = f"on {named(last.lead.processes)}" if len(same_host) == 1 else f"last on {named(last.lead.processes)}"
    next_one = f"; attempt {running.number} runs" if running is not None else ""
    when = at(step_of(process), process.end.ended_ns)
    levels = [each.lead.confidence for each in loop]
    # Several attempts with one failure are signals of their own: it is likely at least.
    confidence = min((max(levels, key=_LEVELS.index), Confidence.LIKELY), key=_LEVELS.index)
    refs = [ref for each in reversed(loop) for ref in each.lead.process.end_refs[:1]]
    return Verdict(
        rule="R1",
        verdict_class=VerdictClass.RESTARTS,
        sentence=f"crash loop: attempts {first.attempt.number} to {last.attempt.number} ended by the same failure, "
        f"{where}{f' {when}' if when else ''}: {error_of(process)}; {reached} in {count} attempts{next_one}: "
        "retrying will not help.",
        blame=Blame.USER if last.lead.cause not in (Cause.NATIVE, Cause.KILLED) else Blame.UNKNOWN,
        confidence=confidence,
        hosts=hosts_of(last.lead.processes),
        process_indices=indices_of(last.lead.processes),
        step=step_of(process),
        since_ns=first.lead.process.end.ended_ns,
        ended_ns=last.attempt.ended_ns,
        cost=None if seconds is None else Cost(seconds, CostBasis.LOWER_BOUND, shows=f"in {count} attempts"),
        evidence=tuple(dict.fromkeys(refs[:10])),
        next=(
            NextCommand("", "stop the job, and fix the first cause before the next attempt"),
            logs_around(facts, process),
            command(facts, f"mldiagnostics doctor RUN --attempt {first.attempt.number}", "see the first of them"),
        ),
    )


def _seconds(facts: Facts, loop: list[_Failure]) -> float | None:
    """Return the time of all attempts after the first failure: none of it led to a new step."""
    start_ns = loop[0].lead.process.end.ended_ns or loop[0].attempt.ended_ns
    end_ns = facts.now_ns if facts.is_live else loop[-1].attempt.ended_ns or facts.now_ns
    return None if start_ns is None or end_ns <= start_ns else (end_ns - start_ns) / 1e9


RULE = Rule(
    id="R1",
    title="a crash loop: several attempts end by the same failure, and none gets further",
    needs=("the ends of all attempts: machinelearning_run, or `with diagnose(...)`",),
    judge=_judge,
    thresholds=(
        Threshold("attempts with the same failure, at least", _LEAST_ATTEMPTS, "two may be chance, such as one host"),
    ),
    example="crash loop: attempts 2 to 4 ended by the same failure, on host-3 at step 30 (16:02:11 UTC): ValueError: "
    "batch 12 is empty; none got further than step 30 in 3 attempts: retrying will not help",
    replaces=("C1", "C2", "C3", "C5", "C7", "C8", "B2", "R2", "U0"),
)
