"""B4: one index of the job on two hosts. Pure; works without Kubernetes."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, ProcessFacts
from ml_diagnostics_console._rules.pod_reasons import options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import clock, command_line, hosts_of
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref, Verdict, VerdictClass

OVERLAP_SECONDS = 5.0
_VARIABLES = "JAX_PROCESS_ID|TPU_WORKER_ID|JOB_COMPLETION_INDEX|SLURM_PROCID|RANK|MEGASCALE_SLICE_ID"


def judge(facts: Facts) -> Judgement:
    """Return the index that two hosts claim at once; None if each has one process."""
    attempt = facts.attempt
    if attempt is None:
        return None
    pair = _claimed_twice(attempt)
    if pair is None:
        return None
    first, second = pair
    index, alone = first.index, first.process_count <= 1 and second.process_count <= 1
    others = [process for process in attempt.processes if process.index == index and process.host != first.host]
    hosts = hosts_of([first, *others])
    since_ns = second.started_ns
    if alone:
        sentence = (
            f"{first.host} and {second.host} both run as process {index} of 1 since {clock(since_ns)}: each of the "
            f"{len(hosts)} hosts trains alone, as if `jax.distributed.initialize` was not called."
        )
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
        next=tuple(_environment(facts, process) for process in (first, second)),
    )


def _claimed_twice(attempt: AttemptFacts) -> tuple[ProcessFacts, ProcessFacts] | None:
    """Return two processes on different hosts with one index that ran at the same time."""
    by_index: dict[int, list[ProcessFacts]] = defaultdict(list)
    for process in attempt.processes:
        if process.index is not None:
            by_index[process.index].append(process)
    for _, processes in sorted(by_index.items()):
        for first, second in combinations(sorted(processes, key=lambda process: process.started_ns)[:16], 2):
            if first.host != second.host and _overlap(first, second) and _is_one_job(first, second):
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
    if first.process_count > 1 and second.process_count > 1:
        return True
    has_steps = first.step is not None and second.step is not None
    expected = max(first.expected_processes or 0, second.expected_processes or 0)
    return first.process_count <= 1 and second.process_count <= 1 and expected > 1 and has_steps


def _evidence(process: ProcessFacts) -> Ref:
    shows = f"{process.host}, pid {process.pid}: process {process.index} of {process.process_count or '?'}"
    known = process.end_refs[:1] or (process.last_step.refs[:1] if isinstance(process.last_step, Fact) else ())
    ref = known[0] if known else Ref(f"{process.host}/{process.pid}", "run")
    return ref._replace(time_ns=process.started_ns, host=process.host, shows=shows)


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
    title="one index on two hosts",
    needs=("the run's entries on its processes",),
    judge=judge,
    thresholds=(
        Threshold("overlap", f"{OVERLAP_SECONDS:g} s", "clocks of hosts, and the time in which a pod replaces another"),
    ),
    example="Index 1 is claimed by host-1 and by host-3 since 16:02:11 UTC.",
)
