"""B2: all processes fail by the same exception, and no step was made: an error of the program, not of a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts
from ml_diagnostics_console._rules.causes import Cause
from ml_diagnostics_console._rules.crashes import command, crash, error_of, logs_around
from ml_diagnostics_console._rules.leads import Lead, lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import at
from ml_diagnostics_console.verdict import Blame, VerdictClass

__all__ = ["RULE", "is_program_error"]

_LONGEST_START_SECONDS: Final = 1_800.0
_BEFORE_STEPS: Final = frozenset({"", "init", "compile", "data", "other", "checkpoint"})
_IN_FIRST_STEP: Final = _BEFORE_STEPS | {"step", "sync"}


def is_program_error(facts: Facts, lead: Lead) -> bool:
    """Return True if a failure is the same exception on all processes before the first step has ended."""
    attempt = facts.attempt
    if attempt is None or lead.cause is not Cause.ERROR or not _is_before_steps(attempt):
        return False
    return lead.is_common or len(attempt.processes) == 1


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on an error of the program before its first step."""
    lead, attempt = lead_of(facts), facts.attempt
    if lead is None or attempt is None or not is_program_error(facts, lead):
        return None
    count, total = len(lead.processes), len(attempt.processes)
    which = f"all {total} processes" if count == total else f"{count} of {total} processes"
    where = "" if total == 1 else f", the same on {which}"
    when = at(None, lead.process.end.ended_ns)
    commands = [
        logs_around(facts, lead.process, "read the first traceback"),
        command(facts, f"mldiagnostics simulate --hosts {min(2, total)} -- COMMAND", "find it on your own machine"),
    ]
    verdict = crash(facts, lead, "B2", "", blame=Blame.USER, verdict_class=VerdictClass.BEFORE_START, commands=commands)
    sentence = f"program error before the first step ended{f' {when}' if when else ''}{where}: {error_of(lead.process)}"
    return replace(verdict, sentence=sentence, step=None)


def _is_before_steps(attempt: AttemptFacts) -> bool:
    phases = {process.last_phase for process in attempt.processes}
    if attempt.best_step is not None:
        return attempt.best_step == 0 and phases <= _IN_FIRST_STEP
    if phases != {""}:
        return phases <= _BEFORE_STEPS
    # A program that reports neither steps nor phases may have trained for hours.
    ends = [process.end.ended_ns - process.started_ns for process in attempt.processes if process.end.ended_ns]
    return all(seconds <= _LONGEST_START_SECONDS * 1e9 for seconds in ends)


RULE = Rule(
    id="B2",
    title="all processes failed by the same exception before the first step",
    needs=("exceptions of all processes: `with diagnose(...)` or machinelearning_run",),
    judge=_judge,
    thresholds=(
        Threshold(
            "longest start of a program that reports no steps and phases",
            f"{_LONGEST_START_SECONDS:.0f} s",
            "a start with a restore and a compilation; later, the program may just report no steps",
        ),
    ),
    example="program error before the first step ended at 16:02:11 UTC, the same on all 4 processes: "
    "ImportError: No module named 'flax'",
    replaces=("C1", "U0"),
)
