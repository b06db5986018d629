"""K3: all processes wait, but at different steps or in different frames: they run different programs or shapes."""

from __future__ import annotations

from collections.abc import Sequence

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.compiled import LEAST_PROCESSES, Compiled, compiled_differently
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stack_groups import frame_text
from ml_diagnostics_console._rules.stuck import Kind, StuckJob, stuck_job
from ml_diagnostics_console._rules.stuck_texts import (
    NEEDS,
    THRESHOLDS,
    cost_of,
    duration,
    evidence_of,
    not_checked,
    stacks_command,
)
from ml_diagnostics_console._rules.wording import at, command_line, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, Verdict, VerdictClass

__all__ = ["RULE"]


def _judge(facts: Facts) -> Judgement:
    job = stuck_job(facts)
    if job is None:
        return not_checked("K3", facts)
    compiled = compiled_differently(facts.processes)
    if job.kind is not Kind.DIVERGED and not (job.kind is Kind.EQUAL and compiled is not None):
        return None
    processes = [suspect.process for suspect in job.suspects] or list(compiled.processes if compiled else ())
    return Verdict(
        rule="K3",
        verdict_class=VerdictClass.STUCK,
        sentence=_sentence(job, processes, compiled),
        blame=Blame.USER,
        confidence=Confidence.LIKELY if job.kind is Kind.DIVERGED and job.is_decided else Confidence.POSSIBLE,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=job.step,
        since_ns=job.since_ns,
        ended_ns=job.until_ns if job.is_over else None,
        cost=cost_of(job),
        evidence=(*evidence_of(job), *(compiled.refs if compiled is not None else ())),
        next=_next(facts, job, processes),
    )


def _sentence(job: StuckJob, processes: Sequence[ProcessFacts], compiled: Compiled | None) -> str:
    names = named(processes)
    verb = "waits" if len(processes) == 1 else "wait"
    if job.kind is Kind.EQUAL and compiled is not None:
        start = at(job.step, job.since_ns)
        return f"possibly {names} {_runs(processes)} another program {start}: {compiled.text}; {duration(job)}"
    positions = [(suspect.process, suspect.stack) for suspect in job.suspects if suspect.stack is not None]
    frames = " and ".join(dict.fromkeys(frame_text(stack) for _, stack in positions))
    steps = sorted({step for process, stack in positions if (step := _step(process, stack.step)) is not None})
    own = f" at step {steps[0]:,}" if steps else ""
    possibly = "" if job.is_decided else "possibly "
    other = job.waiting
    rest = "the others" if other is None or len(other.processes) != 1 else other.processes[0].name
    others = f"{rest} in {other.text} {at(job.step, job.since_ns)}" if other is not None else rest
    shapes = "the hosts run different programs or shapes"
    program = f"{shapes}: {compiled.text}" if compiled is not None else shapes
    return f"{possibly}{names} {verb} in {frames}{own}, {others}: {program}; {duration(job)}"


def _runs(processes: Sequence[ProcessFacts]) -> str:
    return "runs" if len(processes) == 1 else "run"


def _step(process: ProcessFacts, step: int | None) -> int | None:
    return process.step if step is None else step


def _next(facts: Facts, job: StuckJob, processes: Sequence[ProcessFacts]) -> tuple[NextCommand, ...]:
    first = NextCommand(
        command_line("mldiagnostics", "logs", facts.name, "--around", f"step {job.step or 0}"),
        "the first step at which the hosts print different things: a branch on the process index, or different batches",
    )
    return (first, stacks_command(facts, processes, is_over=job.is_over))


RULE = Rule(
    id="K3",
    title="hosts run different programs or shapes",
    needs=(*NEEDS, 'the mark `heartbeat(step, phase="sync")` before the loop waits for the devices'),
    judge=_judge,
    thresholds=(
        *THRESHOLDS,
        Threshold("processes", LEAST_PROCESSES, "of two, nothing shows which is different"),
    ),
    example="host-3 waits in evaluate (train.py:120) at step 4,210, the others in train_step (train.py:88) at step "
    "4,210 (16:02:11 UTC): the hosts run different programs or shapes; no progress for 12 min 0 s",
    replaces=("K2",),
)
