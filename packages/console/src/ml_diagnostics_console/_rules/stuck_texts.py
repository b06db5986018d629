"""Parts of the verdicts of all rules on stuck jobs: sentences, evidence, cost and commands. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.rule import Threshold
from ml_diagnostics_console._rules.stack_groups import frame_text
from ml_diagnostics_console._rules.stuck import ALIVE_SECONDS, STILL_SECONDS, StuckJob, why_unknown
from ml_diagnostics_console._rules.wording import at, command_line, named
from ml_diagnostics_console.verdict import Cost, CostBasis, NextCommand, NotChecked, Ref

__all__ = [
    "NEEDS",
    "THRESHOLDS",
    "cost_of",
    "duration",
    "evidence_of",
    "frames_of_suspects",
    "not_checked",
    "shell",
    "stacks_command",
    "waiting_text",
    "when",
]

NEEDS = ("hang verdicts and stacks of every process: cloud_tpu_diagnostics.diagnose() with HangConfig(enabled=True)",)
THRESHOLDS = (
    Threshold("hang", "the learned timeout of the phase", "HangConfig: the companion's own verdict"),
    Threshold(
        "equal stacks (s)", STILL_SECONDS, "HangConfig.pause_floor_seconds, where no companion watches for hangs"
    ),
    Threshold("alive by an entry after the first hang verdict (s)", ALIVE_SECONDS, "a run's heartbeat, each 60 s"),
)
_MOST_REFS = 6


def not_checked(rule: str, facts: Facts) -> NotChecked | None:
    """Return that a rule on stuck jobs cannot be judged; None if it can."""
    why = why_unknown(facts)
    return NotChecked(rule, why) if why else None


def when(job: StuckJob) -> str:
    """Return the step and the time of the last progress: ` at step 41,207 (16:02:11 UTC)`."""
    return f" {at(job.step, job.since_ns)}"


def duration(job: StuckJob) -> str:
    """Return for how long it is stuck: `no progress for 12 min 3 s`."""
    until = " until the end" if job.is_over else ""
    return f"no progress for {format_duration(job.seconds)}{until}"


def waiting_text(job: StuckJob) -> str:
    """Return which processes wait, and where: `the 7 others wait in train_step (train.py:88)`; empty without any."""
    if job.waiting is None:
        return ""
    processes = job.waiting.processes
    if len(processes) == 1:
        return f"{processes[0].name} waits for it in {job.waiting.text}"
    return f"the {len(processes)} others wait in {job.waiting.text}"


def frames_of_suspects(job: StuckJob) -> str:
    """Return the frames of the suspects: `load_shard (data.py:40)`; empty if no stack of them is known."""
    frames = [frame_text(suspect.stack) for suspect in job.suspects if suspect.stack is not None]
    return " and ".join(list(dict.fromkeys(frame for frame in frames if frame))[:2])


def evidence_of(job: StuckJob) -> tuple[Ref, ...]:
    """Return the entries that show it: of the suspects, then of the processes that wait, and the reports of hangs."""
    refs: list[Ref] = []
    for suspect in job.suspects[:2]:
        if suspect.stack is not None:
            text = frame_text(suspect.stack) or "no Python frame"
            refs.append(suspect.stack.ref._replace(shows=f"{suspect.process.name} is in {text}"))
        if suspect.kernel is not None:
            refs.append(suspect.kernel.ref)
    if job.waiting is not None and job.waiting.answers:
        answer, many = job.waiting.answers[0], len(job.waiting.answers)
        others = "" if many == 1 else f", as {many - 1} others"
        refs.append(answer.stack.ref._replace(shows=f"{answer.process.name} is in {job.waiting.text}{others}"))
    suspected = {id(suspect.process) for suspect in job.suspects}
    hangs = sorted(job.hangs, key=lambda hang: (id(hang.process) not in suspected, hang.time_ns))
    refs += [hang.ref for hang in hangs[:2]]
    return tuple({ref.id: ref for ref in reversed(refs)}.values())[::-1][:_MOST_REFS]


def cost_of(job: StuckJob) -> Cost:
    """Return the time without progress."""
    return Cost(job.seconds, CostBasis.STUCK_TIME)


def shell(facts: Facts, process: ProcessFacts, command: str, why: str) -> NextCommand:
    """Return a command on the host of a process."""
    return NextCommand(f"{command_line('mldiagnostics', 'ssh', facts.name, process.host)} -- {command}", why)


def stacks_command(facts: Facts, processes: Sequence[ProcessFacts], *, is_over: bool) -> NextCommand:
    """Return the command that shows more of the stacks: of the live process, else what was recorded."""
    if is_over or not processes:
        job = facts.display_name or facts.name
        return NextCommand(command_line("tpu-stacks", "show", "--job", job), "all stacks that were recorded")
    why = f"the frames of C and C++ of {named(processes)} show what it waits for"
    return shell(facts, processes[0], f"tpu-stacks dump {processes[0].pid} --native", why)
