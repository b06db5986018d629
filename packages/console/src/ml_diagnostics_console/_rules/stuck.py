"""The picture of a job that is stuck, or was until it was ended: which processes wait, and which they wait for. Pure.

All rules on stuck jobs judge the same picture, so that one story has one of them.

A hang is a verdict of a companion after which its process made no progress. It is of no interest if it is the
consequence of a failure: the others wait for a process that has failed, or left.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ml_diagnostics_common.story import Role

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, HangVerdict, KernelState, MainStack, ProcessFacts
from ml_diagnostics_console._rules.stack_groups import (
    DATA,
    SYNC,
    Answer,
    StackGroup,
    group_stacks,
    is_compiling,
    is_initialising,
    is_reading_input,
    waiting_group,
)
from ml_diagnostics_console.verdict import Ref

__all__ = ["ALIVE_SECONDS", "STILL_SECONDS", "Kind", "StuckJob", "Suspect", "missing_of", "stuck_job", "why_unknown"]

STILL_SECONDS: Final = 600.0
"""Equal stacks for this time count as a hang where no companion watches for one: the floor of
`HangConfig.pause_floor_seconds`."""
BUSY_SHARE: Final = 0.05
"""CPU of a process per second, below which it computes nothing: a compiler uses a core at least."""
_SECOND_NS: Final = 1_000_000_000
ALIVE_SECONDS: Final = 60.0
"""A run's own thread sends a heartbeat each 60 s: a process that is only late has sent one by then."""
_WATCHED_PHASES: Final = frozenset({"", "step", SYNC, DATA, "init", "compile"})
_FROM_OUTSIDE: Final = frozenset({"SIGKILL", "SIGTERM", "SIGINT"})
_ENDS_OF_ITS_OWN: Final = frozenset({"fault", "exception"})


class Kind(str, enum.Enum):
    """The kinds of pictures."""

    HOLDER = "holder"
    """One process is elsewhere than the others, which wait for it."""
    UNANSWERING = "unanswering"
    """One process shows no stack, and the others wait for it."""
    EQUAL = "equal"
    """All wait in the same frame."""
    DIVERGED = "diverged"
    """All wait, but at different steps or in different frames."""
    INPUT = "input"
    """One process is elsewhere, and reads input."""
    COMPILING = "compiling"
    STARTING = "starting"
    """They wait for each other at the start of the job."""


class Hang(NamedTuple):
    """A process without progress."""

    process: ProcessFacts
    since_ns: int
    """The last progress, on the clock of the reference host."""
    time_ns: int
    """When it was reported, on the same clock."""
    step: int | None
    phase: str
    frame: str
    ref: Ref


class Suspect(NamedTuple):
    """A process that the others wait for."""

    process: ProcessFacts
    stack: MainStack | None
    """None if it did not answer."""
    kernel: KernelState | None
    """The kernel's view of it while it was stuck."""


@dataclass(frozen=True, slots=True)
class StuckJob:
    """The state of a stuck job.

    Attributes:
        kind: The kind of picture.
        since_ns: The last progress, on the clock of the reference host.
        until_ns: Now, or the end of the attempt.
        step: The step at which it is stuck.
        waiting: The processes that wait for the others; None if it cannot be decided.
        suspects: The processes that the others wait for, or all if that cannot be decided.
        hangs: The processes without progress.
        is_decided: False if the suspects are all processes since nothing separates them.
        is_over: True if the attempt has ended.
    """

    kind: Kind
    since_ns: int
    until_ns: int
    step: int | None
    waiting: StackGroup | None
    suspects: tuple[Suspect, ...]
    hangs: tuple[Hang, ...]
    is_decided: bool = True
    is_over: bool = False

    @property
    def seconds(self) -> float:
        """For how long it is, or was, stuck."""
        return max(0.0, (self.until_ns - self.since_ns) / _SECOND_NS)


def stuck_job(facts: Facts) -> StuckJob | None:
    """Return the picture of a stuck job; None if it is not stuck."""
    attempt = facts.attempt
    if attempt is None:
        return None
    hangs = _open_hangs(attempt)
    if not hangs or _follows_a_failure(attempt, hangs):
        return _without_hang(facts, attempt) if not hangs else None
    since_ns = min(hang.since_ns for hang in hangs)
    alive = [process for process in attempt.processes if not _ended_before(process, attempt, hangs)]
    known = {id(hang.process): hang for hang in hangs}
    suspects = [_suspect(process, attempt, known.get(id(process)), since_ns) for process in alive]
    answers = [Answer(suspect.process, suspect.stack) for suspect in suspects if suspect.stack is not None]
    silent = [suspect for suspect in suspects if suspect.stack is None]
    late = [suspect for suspect in silent if _is_alive(suspect, attempt, hangs)]
    kind, waiting, found, is_decided = _judged(answers, suspects, late)
    return StuckJob(
        kind=kind,
        since_ns=since_ns,
        until_ns=_until_ns(facts, attempt),
        step=_step(hangs, waiting),
        waiting=waiting,
        suspects=tuple(found),
        hangs=tuple(hangs),
        is_decided=is_decided,
        is_over=not facts.is_live,
    )


def why_unknown(facts: Facts) -> str:
    """Return why it is not known if a job is stuck; empty if it is known."""
    processes = facts.processes
    if not processes or any(process.hangs or process.stacks or process.summaries for process in processes):
        return ""
    return (
        "no companion recorded progress or stacks: wrap the training in cloud_tpu_diagnostics.diagnose() with "
        "HangConfig(enabled=True), and report steps"
    )


def missing_of(attempt: AttemptFacts) -> tuple[tuple[int, ...], int]:
    """Return the indexes of processes that recorded nothing, and how many processes there should be; 0 if unknown.

    The indexes are empty if those of the known processes are not known.
    """
    expected = max((process.expected_processes or process.process_count for process in attempt.processes), default=0)
    indexes = {process.index for process in attempt.processes if process.index is not None}
    if len(attempt.processes) >= expected or len(indexes) != len(attempt.processes):
        return (), expected
    return tuple(index for index in range(min(expected, 1_000_000)) if index not in indexes), expected


# --- Hangs --------------------------------------------------------------------------------------------------


def _open_hangs(attempt: AttemptFacts) -> list[Hang]:
    """Return the hangs after which there was no progress; of equal stacks, if no companion watches for hangs."""
    hangs = [
        Hang(
            process,
            hang.since_ns - _offset(attempt, process),
            hang.time_ns - _offset(attempt, process),
            hang.step,
            hang.phase,
            hang.frame,
            hang.ref,
        )
        for process in attempt.processes
        if (hang := process.hangs[-1] if process.hangs else None) is not None and not _has_passed(process, hang)
    ]
    if hangs or any(process.hangs for process in attempt.processes):
        return hangs
    still = (_still(process, attempt) for process in attempt.processes)
    return [hang for hang in still if hang is not None]


def _has_passed(process: ProcessFacts, hang: HangVerdict) -> bool:
    """Return True if the process made progress after a verdict."""
    end = process.end
    if end.how == "clean" or (end.how == "exit" and end.exit_code == 0):
        return True
    if hang.step is not None and process.step is not None and process.step > hang.step:
        return True
    if any(_is_after(summary.last_step, hang.step) for summary in process.summaries if summary.time_ns > hang.time_ns):
        return True
    # A compilation that has ended and took most of the time: its event is written when it is over.
    return any(batch.time_ns > hang.time_ns and batch.seconds >= hang.stuck_seconds / 2 for batch in process.compiles)


def _is_after(completed: int, step: int | None) -> bool:
    return step is None or completed >= step


def _still(process: ProcessFacts, attempt: AttemptFacts) -> Hang | None:
    """Return a hang by equal stacks over a long time."""
    stacks = [stack for stack in process.stacks if stack.frames and stack.trigger not in _ENDS_OF_ITS_OWN]
    if not stacks or stacks[-1].phase not in _WATCHED_PHASES:
        return None
    newest = stacks[-1]
    since_ns = newest.time_ns - round(newest.unchanged_seconds * _SECOND_NS)
    for earlier in reversed(stacks):
        if earlier.frames != newest.frames or earlier.step != newest.step:
            break
        since_ns = min(since_ns, earlier.time_ns)
    has_moved = newest.step is not None and process.step is not None and process.step > newest.step
    if has_moved or newest.time_ns - since_ns < STILL_SECONDS * _SECOND_NS:
        return None
    offset = _offset(attempt, process)
    return Hang(process, since_ns - offset, newest.time_ns - offset, newest.step, newest.phase, "", newest.ref)


def _follows_a_failure(attempt: AttemptFacts, hangs: Sequence[Hang]) -> bool:
    """Return True if the processes wait for one that has failed, or has left, or a hang ended in a failure."""
    stuck = {id(hang.process) for hang in hangs}
    first_ns = min(hang.time_ns for hang in hangs)
    for process in attempt.processes:
        if process.role not in (Role.OWN, Role.ASKED, Role.CLEAN):
            continue
        end = process.end
        from_outside = (
            process.role is Role.ASKED or end.signal in _FROM_OUTSIDE or end.exception.startswith("KeyboardInterrupt")
        )
        if id(process) in stuck:
            if end.how == "exception" and not from_outside:
                return True
        elif not from_outside or end.ended_ns is None or end.ended_ns <= first_ns:
            return True
    return False


def _ended_before(process: ProcessFacts, attempt: AttemptFacts, hangs: Sequence[Hang]) -> bool:
    """Return True if a process had ended before any hang was reported: it is not one that others wait for."""
    if not process.has_ended or any(hang.process is process for hang in hangs):
        return False
    first_ns = min(hang.time_ns for hang in hangs)
    return process.end.ended_ns is not None and process.end.ended_ns <= first_ns


def _offset(attempt: AttemptFacts, process: ProcessFacts) -> int:
    return attempt.clock_offsets_ns.get(process.host, 0)


def _until_ns(facts: Facts, attempt: AttemptFacts) -> int:
    if facts.is_live:
        return facts.now_ns
    return attempt.ended_ns or max((process.last_event_ns for process in attempt.processes), default=facts.now_ns)


def _step(hangs: Sequence[Hang], waiting: StackGroup | None) -> int | None:
    if waiting is not None and waiting.steps:
        return max(waiting.steps)
    return max((hang.step for hang in hangs if hang.step is not None), default=None)


# --- Suspects -----------------------------------------------------------------------------------------------


def _suspect(process: ProcessFacts, attempt: AttemptFacts, hang: Hang | None, since_ns: int) -> Suspect:
    """Return a process with its stack and the kernel's view since the job is stuck."""
    since_ns = (since_ns if hang is None else hang.since_ns) + _offset(attempt, process)
    stacks = [
        stack for stack in process.stacks if stack.frames and stack.time_ns >= since_ns and stack.trigger != "exception"
    ]
    asked = [stack for stack in stacks if stack.trigger != "fault"]
    stack = (asked or stacks)[-1] if stacks else None
    if stack is None and hang is not None and hang.frame:
        stack = MainStack(hang.time_ns, (hang.frame,), hang.step, hang.phase, 0.0, "snapshot", hang.ref)
    states = [state for state in process.kernel_states if state.time_ns >= since_ns]
    return Suspect(process, stack, states[-1] if states else None)


def _is_alive(suspect: Suspect, attempt: AttemptFacts, hangs: Sequence[Hang]) -> bool:
    """Return True if a process without a stack recorded something long after the job was stuck: it only is not asked.

    Its own timeout may be longer, as in a phase that the program has marked as data loading.
    """
    if suspect.kernel is not None or any(hang.process is suspect.process for hang in hangs):
        return False
    first_ns = min(hang.time_ns for hang in hangs)
    return suspect.process.last_event_ns - _offset(attempt, suspect.process) > first_ns + ALIVE_SECONDS * _SECOND_NS


_Judged = tuple[Kind, "StackGroup | None", "Sequence[Suspect]", bool]


def _judged(answers: Sequence[Answer], suspects: Sequence[Suspect], late: Sequence[Suspect]) -> _Judged:
    """Return the kind, the waiting group, the suspects, and True if they are decided."""
    by_process = {id(suspect.process): suspect for suspect in suspects}
    silent = [suspect for suspect in suspects if suspect.stack is None]
    compiling = [answer for answer in answers if is_compiling(answer.stack) and not _is_idle(by_process, answer)]
    groups = group_stacks(answers)
    waiting = waiting_group(groups)
    if compiling and not silent:
        rest = [answer for answer in answers if answer not in compiling]
        return Kind.COMPILING, next(iter(group_stacks(rest)), None), _of(by_process, compiling), True
    if silent:
        stopped = [suspect for suspect in silent if _is_stopped(suspect)]
        first = waiting or (groups[0] if len(groups) == 1 else None)
        kind = Kind.HOLDER if len(late) == len(silent) and first is not None else Kind.UNANSWERING
        is_decided = bool(stopped) or len(silent) < len(suspects) or len(silent) == 1
        return kind, first, stopped or silent, is_decided
    if answers and all(is_initialising(answer.stack) for answer in (waiting or groups[0]).answers):
        return Kind.STARTING, waiting or groups[0], [], True
    if len(groups) == 1:
        return _of_one_group(groups[0], by_process)
    if waiting is None:
        if all(group.is_marked for group in groups):
            return Kind.DIVERGED, groups[0], _of(by_process, (a for g in groups[1:] for a in g.answers)), False
        return Kind.HOLDER, None, suspects, False
    elsewhere = [answer for group in groups if group is not waiting for answer in group.answers]
    found = _of(by_process, elsewhere)
    if waiting.is_marked and all(answer.stack.phase == SYNC for answer in elsewhere):
        return Kind.DIVERGED, waiting, found, True
    if all(is_reading_input(answer.stack) for answer in elsewhere):
        return Kind.INPUT, waiting, found, True
    return Kind.HOLDER, waiting, found, True


def _of_one_group(group: StackGroup, by_process: dict[int, Suspect]) -> _Judged:
    everyone = _of(by_process, group.answers)
    if all(is_reading_input(answer.stack) for answer in group.answers):
        return Kind.INPUT, None, everyone, True
    if len(group.answers) == 1 and not group.is_marked:
        return Kind.HOLDER, None, everyone, True
    steps = {
        answer.stack.step if answer.stack.step is not None else answer.process.step for answer in group.answers
    } - {None}
    if len(steps) > 1 and group.is_marked:
        last = max(step for step in steps if step is not None)
        behind = [answer for answer in group.answers if (answer.stack.step or answer.process.step) != last]
        return Kind.DIVERGED, group, _of(by_process, behind), True
    return Kind.EQUAL, group, (), True


def _of(by_process: dict[int, Suspect], answers: Iterable[Answer]) -> list[Suspect]:
    return [by_process[id(answer.process)] for answer in answers]


def _is_stopped(suspect: Suspect) -> bool:
    """Return True if the kernel reports that a process is stopped, or waits for a disk."""
    return suspect.kernel is not None and suspect.kernel.states[-1:] in (("T",), ("t",), ("D",))


def _is_idle(by_process: dict[int, Suspect], answer: Answer) -> bool:
    """Return True if the kernel reports that a process uses no CPU."""
    kernel = by_process[id(answer.process)].kernel
    if kernel is None or kernel.cpu_seconds is None or not kernel.seconds:
        return False
    return kernel.cpu_seconds < BUSY_SHARE * kernel.seconds


def _without_hang(facts: Facts, attempt: AttemptFacts) -> StuckJob | None:
    """Return the picture of a job with a process that is stopped or does not answer, though no hang was reported."""
    if stopped := [process for process in attempt.processes if _stays_stopped(process)]:
        return _of_stopped(facts, attempt, stopped)
    if not attempt.story.first or not all(process.end.is_silent for process in attempt.first):
        return None
    silent = [
        Suspect(process, None, process.kernel_states[-1] if process.kernel_states else None)
        for process in attempt.first
    ]
    others = [process for process in attempt.processes if process.role is Role.CASCADE]
    answers = [Answer(process, process.stacks[-1]) for process in others if process.stacks[-1:]]
    groups = group_stacks(answers)
    return StuckJob(
        kind=Kind.UNANSWERING,
        since_ns=max(process.last_event_ns for process in attempt.first),
        until_ns=_until_ns(facts, attempt),
        step=max((process.step for process in attempt.processes if process.step is not None), default=None),
        waiting=groups[0] if groups else None,
        suspects=tuple(silent),
        hangs=(),
        is_over=not facts.is_live,
    )


def _stays_stopped(process: ProcessFacts) -> bool:
    """Return True if the kernel reported last that a process is stopped, and it made no progress since.

    A stopped process counts as being debugged, so its companion reports no hang, only its state.
    """
    state = process.kernel_states[-1] if process.kernel_states else None
    if state is None or state.states[-1:] != ("T",) or process.end.how == "clean":
        return False
    return not any(summary.time_ns > state.time_ns for summary in process.summaries)


def _of_stopped(facts: Facts, attempt: AttemptFacts, stopped: Sequence[ProcessFacts]) -> StuckJob:
    """Return the picture of a job with processes that a signal has stopped."""
    since_ns = min(
        max((summary.time_ns for summary in process.summaries), default=process.kernel_states[-1].time_ns)
        - _offset(attempt, process)
        for process in stopped
    )
    return StuckJob(
        kind=Kind.UNANSWERING,
        since_ns=since_ns,
        until_ns=_until_ns(facts, attempt),
        step=max((process.step for process in stopped if process.step is not None), default=None),
        waiting=None,
        suspects=tuple(Suspect(process, None, process.kernel_states[-1]) for process in stopped),
        hangs=(),
        is_over=not facts.is_live,
    )
