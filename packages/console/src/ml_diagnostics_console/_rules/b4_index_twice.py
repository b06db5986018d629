"""B4: two processes with one index of the job. Pure; works without Kubernetes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, ProcessFacts
from ml_diagnostics_console._rules.pod_reasons import options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import at, clock, command_line, hosts_of, indices_of
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref, Verdict, VerdictClass

OVERLAP_SECONDS = 5.0
_DISPLACED_TEXT = "a request from a newer incarnation"
_DISPLACED = re.compile(_DISPLACED_TEXT)
"""JAX's coordination service writes it to a process if another one has its index (jaxlib 0.10)."""
_VARIABLES = "JAX_PROCESS_ID|TPU_WORKER_ID|JOB_COMPLETION_INDEX|SLURM_PROCID|RANK|MEGASCALE_SLICE_ID"


def judge(facts: Facts) -> Judgement:
    """Return the index that two processes claim at once; None if each has one process."""
    attempt = facts.attempt
    if attempt is None:
        return None
    pair = _claimed_twice(attempt)
    if pair is None:
        return _displaced(facts, attempt)
    first, second = pair
    index, alone = first.index, not (_knows_others(first) and _knows_others(second))
    others = [process for process in attempt.processes if process.index == index and process is not first]
    hosts = hosts_of([first, *others])
    since_ns = second.started_ns
    if alone:
        sentence = (
            f"{first.host} and {second.host} both run as process {index} of 1 since {clock(since_ns)}: each of the "
            f"{len(hosts)} hosts trains alone, as if `jax.distributed.initialize` was not called."
        )
    elif first.host == second.host:
        sentence = f"Index {index} is claimed by two processes of {first.host} since {clock(since_ns)}: {_pids(pair)}."
    else:
        sentence = f"Index {index} is claimed by {first.host} and by {second.host} since {clock(since_ns)}."
        if len(hosts) > 2:
            sentence = f"{sentence[:-1]}, and by {len(hosts) - 2} more hosts."
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.BEFORE_START,
        sentence=sentence,
        blame=Blame.USER,
        confidence=Confidence.PROVEN if not alone else Confidence.LIKELY,
        hosts=hosts,
        process_indices=() if index is None else (index,),
        since_ns=since_ns,
        evidence=tuple(_evidence(process) for process in (first, second)),
        next=tuple(dict.fromkeys(_environment(facts, process) for process in (first, second))),
    )


def _displaced(facts: Facts, attempt: AttemptFacts) -> Verdict | None:
    """Return the verdict on a process that JAX ended at the start, since another one connected with its index."""
    processes = attempt.processes
    if any(process.step is not None for process in processes):
        return None  # A process that was started again took its place, and the job went on.
    for process in processes:
        console = next((text for text in process.console if _DISPLACED.search(text.text)), None)
        if console is None or not process.has_ended or all(_overlap_ns(each, process) <= 0 for each in processes):
            continue
        moment = at(None, process.end.ended_ns)
        return Verdict(
            rule=RULE.id,
            verdict_class=VerdictClass.BEFORE_START,
            sentence=f"JAX ended {process.name} {moment}: another process had connected with the same index, and the "
            "others wait for the one that is missing.",
            blame=Blame.USER,
            confidence=Confidence.LIKELY,
            hosts=hosts_of([process]),
            process_indices=indices_of([process]) if process.coordinator else (),
            since_ns=process.end.ended_ns,
            evidence=(console.ref._replace(shows=f"{process.name} wrote: {_DISPLACED_TEXT}"), *process.end_refs[:1]),
            next=(_environment(facts, process),),
        )
    return None


def _overlap_ns(process: ProcessFacts, ended: ProcessFacts) -> int:
    """Return for how long a process has waited after another one ended, in ns; 0 for that one itself."""
    return 0 if process is ended else process.last_event_ns - (ended.end.ended_ns or ended.last_event_ns)


def _pids(processes: Iterable[ProcessFacts]) -> str:
    return " and ".join(f"pid {process.pid}" for process in processes)


def _claimed_twice(attempt: AttemptFacts) -> tuple[ProcessFacts, ProcessFacts] | None:
    """Return two processes with one index that ran at the same time."""
    by_index: dict[int, list[ProcessFacts]] = defaultdict(list)
    for process in attempt.processes:
        if process.index is not None:
            by_index[process.index].append(process)
    for _, processes in sorted(by_index.items()):
        for first, second in combinations(sorted(processes, key=lambda process: process.started_ns)[:16], 2):
            if _overlap(first, second) and _is_one_job(first, second):
                return first, second
    return None


def _overlap(first: ProcessFacts, second: ProcessFacts) -> bool:
    """Return True if both ran at the same time: a pod that replaces another has its index, too."""
    last_ns = max(first.end.ended_ns or 0, first.last_event_ns)
    return last_ns - second.started_ns > OVERLAP_SECONDS * 1e9


def _is_one_job(first: ProcessFacts, second: ProcessFacts) -> bool:
    """Return True if both know of several processes, or are alone in a job that should have several.

    Before JAX has started, a process does not know its index, and records 0 of 1.
    """
    if _knows_others(first) and _knows_others(second):
        return True
    if first.host == second.host:
        return False  # Such as programs that one user starts on one machine, one after the other.
    has_steps = first.step is not None and second.step is not None
    expected = max(first.expected_processes or 0, second.expected_processes or 0)
    return first.process_count <= 1 and second.process_count <= 1 and expected > 1 and has_steps


def _knows_others(process: ProcessFacts) -> bool:
    """Return True if JAX has started with several processes, or the index was given to `jax.distributed.initialize`.

    Without its address an index of 0 may be that of a process that was given none.
    """
    is_given = bool(process.coordinator) or bool(process.index)
    return process.process_count > 1 or (is_given and (process.expected_processes or 0) > 1)


def _evidence(process: ProcessFacts) -> Ref:
    shows = f"{process.host}, pid {process.pid}: process {process.index} of {_count(process)}"
    known = process.end_refs[:1] or (process.last_step.refs[:1] if isinstance(process.last_step, Fact) else ())
    ref = known[0] if known else Ref(f"{process.host}/{process.pid}", "run")
    return ref._replace(time_ns=process.started_ns, host=process.host, shows=shows)


def _count(process: ProcessFacts) -> int | str:
    return process.process_count or process.expected_processes or "?"


def _environment(facts: Facts, process: ProcessFacts) -> NextCommand:
    """Return the command that prints the variables that decide the index on a host."""
    why = f"shows the variables that give {process.host} its index"
    if isinstance(facts.kubernetes, Fact):
        cluster = facts.kubernetes.value
        pod = cluster.pod_of(process.host, process.index, process.started_ns, process.end.ended_ns)
        if pod is not None and not pod.is_gone:
            options = options_of(cluster, pod.namespace)
            pod_name = command_line(pod.name)
            return NextCommand(f"kubectl exec {pod_name}{options} -- env | grep -E '{_VARIABLES}'", why)
    env = command_line("mldiagnostics", "ssh", facts.name, process.host, "--", "env")
    return NextCommand(f"{env} | grep -E '{_VARIABLES}'", why)


RULE = Rule(
    id="B4",
    title="two processes with one index",
    needs=("the run's entries on its processes, or `with diagnose(...)` around `jax.distributed.initialize`",),
    judge=judge,
    thresholds=(
        Threshold("overlap", f"{OVERLAP_SECONDS:g} s", "clocks of hosts, and the time in which a pod replaces another"),
    ),
    replaces=("B3",),
    example="Index 1 is claimed by host-1 and by host-3 since 16:02:11 UTC.",
)
