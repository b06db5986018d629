"""K1: one process is elsewhere than all others, which wait for it."""

from __future__ import annotations

from ml_diagnostics_console._facts.facts import Facts, MainStack
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.stack_groups import frame_text
from ml_diagnostics_console._rules.stuck import Kind, StuckJob, stuck_job
from ml_diagnostics_console._rules.stuck_texts import (
    NEEDS,
    THRESHOLDS,
    cost_of,
    duration,
    evidence_of,
    frames_of_suspects,
    not_checked,
    stacks_command,
    waiting_text,
    when,
)
from ml_diagnostics_console._rules.wording import hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, Confidence, Verdict, VerdictClass

__all__ = ["RULE"]


def _judge(facts: Facts) -> Judgement:
    job = stuck_job(facts)
    if job is None:
        return not_checked("K1", facts)
    if job.kind is not Kind.HOLDER:
        return None
    processes = [suspect.process for suspect in job.suspects]
    is_sure = job.is_decided and all(suspect.stack for suspect in job.suspects)
    is_sure = is_sure and (job.waiting is not None or len(facts.processes) == 1)
    return Verdict(
        rule="K1",
        verdict_class=VerdictClass.STUCK,
        sentence=_sentence(job, is_sure=is_sure),
        blame=Blame.USER,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=job.step,
        since_ns=job.since_ns,
        ended_ns=job.until_ns if job.is_over else None,
        cost=cost_of(job),
        evidence=evidence_of(job),
        next=(stacks_command(facts, processes, is_over=job.is_over),),
    )


def _sentence(job: StuckJob, *, is_sure: bool) -> str:
    processes = [suspect.process for suspect in job.suspects]
    frames = frames_of_suspects(job)
    where = f" in {frames}" if frames else ", and its stack is not recorded"
    possibly = "" if is_sure else "possibly "
    if not job.is_decided:
        each = [f"{suspect.process.name}{_frame(suspect.stack)}" for suspect in job.suspects[:3]]
        return f"possibly one of {' or '.join(each)} holds all up{when(job)}: nothing separates them; {duration(job)}"
    if job.waiting is None:
        return f"{possibly}{named(processes)} is stuck{where}{when(job)}; {duration(job)}"
    verb = "holds" if len(processes) == 1 else "hold"
    return f"{possibly}{named(processes)} {verb} all up{where}{when(job)}; {waiting_text(job)}; {duration(job)}"


def _frame(stack: MainStack | None) -> str:
    text = frame_text(stack) if stack is not None else ""
    return f" in {text}" if text else ""


RULE = Rule(
    id="K1",
    title="one process holds all others up",
    needs=NEEDS,
    judge=_judge,
    thresholds=THRESHOLDS,
    example="host-3 holds all up in load_shard (data.py:40) at step 4,210 (16:02:11 UTC); the 7 others wait in "
    "train_step (train.py:88); no progress for 12 min 0 s",
)
