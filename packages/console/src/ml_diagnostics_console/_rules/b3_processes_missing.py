"""B3: processes wait for others, or for their devices, at the start of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stack_groups import is_initialising
from ml_diagnostics_console._rules.stuck import Kind, StuckJob, missing_of, stuck_job
from ml_diagnostics_console._rules.stuck_texts import NEEDS, cost_of, evidence_of
from ml_diagnostics_console._rules.wording import at, command_line, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Ref,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_SILENT_SECONDS: Final = 300.0
_SECOND_NS: Final = 1_000_000_000
_SHOWN: Final = 5


def _judge(facts: Facts) -> Judgement:
    attempt = facts.attempt
    if attempt is None:
        return None
    job = stuck_job(facts)
    if job is not None and job.kind is Kind.STARTING:
        return _of_hang(facts, attempt, job)
    indexes, expected = missing_of(attempt)
    known = len(attempt.processes)
    if not expected:
        return NotChecked(
            "B3", "the number of processes is not known: give machinelearning_run(expected_processes=...)"
        )
    has_steps = any(process.step is not None for process in attempt.processes)
    started_ns = attempt.started_ns or min((each.started_ns for each in attempt.processes), default=facts.now_ns)
    seconds = (facts.now_ns - started_ns) / _SECOND_NS
    if known >= expected or has_steps or attempt.has_failed or not facts.is_live or seconds < _SILENT_SECONDS:
        return None
    return _verdict(
        facts,
        attempt,
        sentence=f"{_missing(indexes, expected - known)} recorded nothing in {format_duration(seconds)} since the "
        f"start; {known} of {expected} processes did {at(None, started_ns)}",
        confidence=Confidence.POSSIBLE,
        cost=Cost(seconds, CostBasis.STUCK_TIME),
        refs=(Ref(facts.name, "run", started_ns, "", f"{known} of {expected} processes have recorded something"),),
        since_ns=started_ns,
    )


def _of_hang(facts: Facts, attempt: AttemptFacts, job: StuckJob) -> Verdict:
    assert job.waiting is not None
    indexes, expected = missing_of(attempt)
    waiting = job.waiting.processes
    coordinator = next(
        (text for process in waiting if (text := str(process.fields.get("coordinator_address") or ""))), ""
    )
    where = coordinator or job.waiting.text
    moment = at(None, job.since_ns)
    lasted = format_duration(job.seconds)
    absent = max(0, expected - len(attempt.processes))
    elsewhere = [process for process in attempt.processes if all(process is not each for each in waiting)]
    elsewhere = [process for process in elsewhere if not process.stacks or not is_initialising(process.stacks[-1])]
    lost = _with_another_coordinator(waiting)
    if absent:
        sentence = (
            f"{_missing(indexes, absent)} never arrived: {len(waiting)} of {expected} processes wait at {where} "
            f"{moment} for {lasted}"
        )
    elif lost:
        usual = next(process.coordinator for process in waiting if all(process is not each for each in lost))
        verb = "waits" if len(lost) == 1 else "wait"
        sentence = (
            f"{named(lost)} {verb} for another coordinator than the others, {lost[0].coordinator} instead of {usual}: "
            f"all {len(waiting)} processes wait at {where} {moment} for {lasted}"
        )
    elif elsewhere:
        sentence = (
            f"{named(elsewhere)} never reached {where}: {len(waiting)} processes wait there {moment} for {lasted}"
        )
    elif len(waiting) == 1:
        sentence = (
            f"{waiting[0].name} waits at {where} {moment} for {lasted}: possibly other processes never arrived, or the "
            "coordinator or the devices cannot be reached"
        )
    else:
        sentence = (
            f"all {len(waiting)} processes wait at {where} {moment} for {lasted}: possibly the address of the "
            "coordinator is wrong, or its port is blocked"
        )
    blamed = [] if absent else lost or elsewhere
    refs = [_coordinator_ref(process) for process in (*lost, *waiting) if lost and process.coordinator]
    return _verdict(
        facts,
        attempt,
        sentence=sentence,
        confidence=Confidence.LIKELY if absent or blamed else Confidence.POSSIBLE,
        cost=cost_of(job),
        refs=(*refs[:2], *evidence_of(job)),
        since_ns=job.since_ns,
        job=job,
        blamed=blamed,
    )


def _with_another_coordinator(waiting: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """Return the processes that were given another address than most; of two, the one that is not the coordinator."""
    addresses = Counter(process.coordinator for process in waiting if process.coordinator)
    if len(addresses) < 2:
        return []
    usual, many = addresses.most_common(1)[0]
    if many * 2 <= sum(addresses.values()):  # Process 0 is the coordinator: the others have to have its address.
        usual = next((process.coordinator for process in waiting if process.index == 0), "")
    return [process for process in waiting if process.coordinator not in ("", usual)] if usual else []


def _coordinator_ref(process: ProcessFacts) -> Ref:
    shows = f"{process.name}: jax.distributed.initialize was called with {process.coordinator}"
    ref = process.hangs[-1].ref if process.hangs else Ref(f"{process.host}/{process.pid}", "run", process.started_ns)
    return ref._replace(shows=shows)


def _verdict(
    facts: Facts,
    attempt: AttemptFacts,
    *,
    sentence: str,
    confidence: Confidence,
    cost: Cost,
    refs: tuple[Ref, ...],
    since_ns: int,
    job: StuckJob | None = None,
    blamed: Sequence[ProcessFacts] = (),
) -> Verdict:
    indexes, _ = missing_of(attempt)
    waiting = job.waiting.processes if job is not None and job.waiting is not None else attempt.processes
    return Verdict(
        rule="B3",
        verdict_class=VerdictClass.BEFORE_START,
        sentence=sentence,
        blame=Blame.UNKNOWN,
        confidence=confidence,
        hosts=hosts_of(blamed or waiting),
        process_indices=indexes or indices_of(blamed or waiting),
        since_ns=since_ns,
        ended_ns=job.until_ns if job is not None and job.is_over else None,
        cost=cost,
        evidence=refs,
        next=(
            NextCommand("kubectl get pods -o wide", "shows if the missing processes were started, and where"),
            NextCommand(
                command_line("mldiagnostics", "ssh", facts.name, waiting[0].host, "--", "env"),
                "JAX_COORDINATOR_ADDRESS, the number and the index of the processes: compare them with a missing one",
            ),
        ),
    )


def _missing(indexes: tuple[int, ...], absent: int) -> str:
    if not indexes:
        return f"{absent} processes" if absent > 1 else "1 process"
    shown = ", ".join(map(str, indexes[:_SHOWN])) + (
        f" and {len(indexes) - _SHOWN} more" if len(indexes) > _SHOWN else ""
    )
    return f"process {shown}" if len(indexes) == 1 else f"processes {shown}"


RULE = Rule(
    id="B3",
    title="processes never arrived",
    needs=(*NEEDS, "the number of processes: the launcher's variables, or machinelearning_run(expected_processes=...)"),
    judge=_judge,
    thresholds=(
        Threshold("hang", "the timeout of the phase init", "HangConfig.startup_floor_seconds"),
        Threshold("silence (s)", _SILENT_SECONDS, "initialization_timeout of jax.distributed.initialize"),
    ),
    example="process 3 never arrived: 7 of 8 processes wait at initialize (jax/_src/distributed.py:180) at "
    "16:02:11 UTC for 30 min 0 s",
)
