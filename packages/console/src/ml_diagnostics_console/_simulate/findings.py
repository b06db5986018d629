"""Findings of a rehearsal itself, apart from what the job records: verdicts in the form of the doctor's. Pure.

These are known for certain, since `simulate` has the whole manifest and has started every process: a pod that no
machine can run (B1), processes that never start (B3), and two pods with one index (B4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_count

from ml_diagnostics_console._facts.kubernetes_facts import NodeFacts
from ml_diagnostics_console._facts.kubernetes_objects import pod_requests
from ml_diagnostics_console._simulate.launch import groups_of
from ml_diagnostics_console._simulate.machines import KNOWN_MACHINES, fit_of
from ml_diagnostics_console._simulate.manifest import Workload
from ml_diagnostics_console._simulate.variables import Pod
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref, Verdict, VerdictClass

__all__ = ["Call", "call_of", "count_verdict", "resource_findings"]

_SOURCE: Final = "file"


@dataclass(frozen=True)
class Call:
    """A call of `jax.distributed.initialize` in a pod.

    Attributes:
        pod: The number of the pod.
        pid: The process.
        count: The number of processes that it passed; None if it is not a number.
        index: The index that it passed.
        is_bare: True if both were passed by the launcher, since the program left them out.
        replaced: The coordinator's address that was replaced by one of this machine; empty if none was.
    """

    pod: int
    pid: int
    count: int | None
    index: int | None
    is_bare: bool
    replaced: str


def call_of(values: Mapping[str, Any]) -> Call | None:
    """Return the call that a launcher reports; None if the report is damaged."""

    def number(name: str) -> int | None:
        value = values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    pod, pid = number("pod"), number("pid")
    if pod is None or pid is None:
        return None
    return Call(
        pod, pid, number("count"), number("index"), values.get("is_bare") is True, str(values.get("replaced") or "")
    )


# --- Before the start ---------------------------------------------------------------------------------


def resource_findings(workload: Workload, nodes: Sequence[NodeFacts] | None, source: str) -> list[Verdict | str]:
    """Return for each kind of pods a verdict if no machine can run it, else a line with the smallest that can.

    Args:
        workload: The workload.
        nodes: The nodes of a cluster; None compares with known machine types.
        source: The manifest's file.
    """
    found: dict[str, Verdict | str] = {}
    for job in workload.jobs:
        requests = pod_requests(job.template.spec.raw)
        if not requests:
            continue
        name = job.replicated_job or job.name
        fit = fit_of(requests, job.template.spec.pairs("nodeSelector"), KNOWN_MACHINES if nodes is None else nodes)
        kind = "a machine type that is known here" if nodes is None else "a node of the cluster"
        if fit.smallest is not None:
            where = "" if nodes is None else "node "
            found[name] = f"resources of {name}: nothing is limited here; {where}{fit.smallest.name} fits a pod"
            continue
        advice = f"change the requests to {fit.largest}, the most that fits" if fit.largest else "change nodeSelector"
        found[name] = Verdict(
            rule="B1",
            verdict_class=VerdictClass.BEFORE_START,
            sentence=f"the pods of {name} can never start: none fits {kind}; {fit.reason}",
            blame=Blame.USER,
            confidence=Confidence.PROVEN if nodes is not None else Confidence.LIKELY,
            evidence=(Ref(f"{source}:{job.template.spec.path}", _SOURCE, shows=f"{source} requests it for {name}"),),
            next=(NextCommand("", advice),),
        )
    return list(found.values())


# --- While it runs ------------------------------------------------------------------------------------


def count_verdict(
    workload: Workload, pods: Sequence[Pod], calls: Sequence[Call], *, is_settled: bool, source: str
) -> Verdict | None:
    """Return the verdict if the program expects other processes than the pods of the manifest; None if it does not.

    Args:
        workload: The workload.
        pods: All pods.
        calls: The calls of `jax.distributed.initialize` so far.
        is_settled: True if no further call is to be expected.
        source: The manifest's file, or the command.
    """
    for group in groups_of(pods):
        ranks = {pod.rank for pod in group}
        own = [call for call in calls if call.pod in ranks and call.count is not None]
        claimed = _claimed_twice(group, own)
        if claimed is not None:
            return _twice(claimed, pods, source)
        expected = max((call.count or 0 for call in own), default=0)
        has_all = {call.pod for call in own} == ranks
        if expected and expected < len(group) and has_all:
            return _wrong_count(workload, group, expected, source, own)
        present = len({call.index for call in own})
        if has_all and is_settled and present < expected:
            return _wrong_count(workload, group, expected, source, own)
    return None


def _claimed_twice(group: Sequence[Pod], calls: Sequence[Call]) -> tuple[Call, Call] | None:
    """Return two calls with one index of two pods."""
    first: dict[int, Call] = {}
    for call in calls:
        if call.index is None:
            continue
        other = first.setdefault(call.index, call)
        if other.pod != call.pod:
            return other, call
    return None


def _twice(claimed: tuple[Call, Call], pods: Sequence[Pod], source: str) -> Verdict:
    names = [next(pod.name for pod in pods if pod.rank == call.pod) for call in claimed]
    index = claimed[0].index
    return Verdict(
        rule="B4",
        verdict_class=VerdictClass.BEFORE_START,
        sentence=f"process index {index} is claimed by {names[0]} and {names[1]}: each passes it to "
        "jax.distributed.initialize",
        blame=Blame.USER,
        confidence=Confidence.PROVEN,
        process_indices=() if index is None else (index,),
        evidence=tuple(
            Ref(f"{name}/{call.pid}", "process", shows=f"{name} called jax.distributed.initialize(process_id={index})")
            for name, call in zip(names, claimed, strict=True)
        ),
        next=(NextCommand("", f"pass an index that differs in each pod, such as JOB_COMPLETION_INDEX, in {source}"),),
    )


def _wrong_count(
    workload: Workload, group: Sequence[Pod], expected: int, source: str, calls: Sequence[Call]
) -> Verdict:
    started = format_count(len(group), "process", "processes")
    missing = sorted(set(range(expected)) - {call.index for call in calls if call.index is not None})
    never = f": processes {_listed(missing)} never start, and the others wait for them" if missing else ""
    own = group[0].job
    is_command = workload.kind == "command"
    start_more = f"give --hosts {expected}"
    if not is_command:
        start_more = f"set parallelism and completions to {expected} in {source}"
    sizes = f"{own.replicas} x " if own.replicas > 1 else ""
    where = f"the {workload.kind} starts {started}" + (
        " (--hosts)" if is_command else f" ({sizes}parallelism {own.parallelism})"
    )
    return Verdict(
        rule="B3",
        verdict_class=VerdictClass.BEFORE_START,
        sentence=f"the program expects {format_count(expected, 'process', 'processes')}, and {where}{never}",
        blame=Blame.USER,
        confidence=Confidence.PROVEN,
        process_indices=tuple(missing),
        evidence=tuple(
            Ref(
                f"{pod.name}/{call.pid}",
                "process",
                shows=f"{pod.name} called jax.distributed.initialize(num_processes={call.count}, "
                f"process_id={call.index})",
            )
            for call in calls[:3]
            for pod in group
            if pod.rank == call.pod
        ),
        next=(NextCommand("", f"pass num_processes={len(group)}, or {start_more}"),),
    )


def _listed(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:4]]
    more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
    return ", ".join(shown) + more
