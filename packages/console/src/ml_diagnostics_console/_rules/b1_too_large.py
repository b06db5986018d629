"""B1: a pod requests more than any node has, so that it can never start. Pure."""

from __future__ import annotations

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
from ml_diagnostics_console._rules.pod_reasons import describe_pod, options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.waiting import (
    WAITS,
    SizeLimit,
    Waiting,
    amount,
    cost_of,
    event_ref,
    get_nodes,
    lacks_capacity,
    oversized,
    pod_ref,
    refused_by_autoscaler,
    scaling_up,
    unscheduled,
    waiting_of,
)
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Ref, Verdict, VerdictClass


def judge(facts: Facts) -> Judgement:
    """Return the request that no node can give; None if each pod has a node that could."""
    found = waiting_of(facts, RULE.id)
    if found is None or isinstance(found, NotChecked):
        return found
    cluster, pods = found.cluster, unscheduled(found.pods)
    is_held = not cluster.pods and any(job.requests for job in cluster.jobs)
    if not pods and not is_held:
        return None
    if not cluster.has_all_nodes:
        why = cluster.unread.get("nodes", "the nodes of the cluster were not read")
        return NotChecked(RULE.id, f"the largest node is not known: {why}")
    large = oversized(cluster, pods)
    if large is None or scaling_up(cluster, pods, found.now_ns) is not None:
        return None
    limit = large.limits[0]
    refused = refused_by_autoscaler(cluster, pods)
    if any(map(lacks_capacity, refused)):  # A pool without nodes has a size that fits.
        return None
    pod = large.pod
    since_ns = pod.created_ns if pod is not None and pod.created_ns is not None else None
    evidence = [pod_ref(pod, f"pod {pod.name} requests {_requests(large.limits)}")] if pod is not None else []
    if pod is None:
        evidence.append(Ref(large.ref, "kubernetes", None, "", f"its pods request {_requests(large.limits)}"))
    if limit.node is not None:
        shows = f"node {limit.node.name} has {amount(limit.resource, limit.largest)}, the most of all that fit"
        evidence.append(Ref(limit.node.ref, "kubernetes", None, limit.node.name, shows))
    evidence += [event_ref(event) for event in refused[-1:]]
    doubt = "" if refused else " (a node pool without nodes may have larger ones)"
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.BEFORE_START,
        sentence=f"{_subject(found, large.name, pod is not None)} can never start: {_limits(large.limits)}{doubt}.",
        blame=Blame.USER,
        # A pool that is scaled to zero is not seen, unless an autoscaler shows that none would fit.
        confidence=Confidence.PROVEN if refused else Confidence.LIKELY,
        hosts=tuple(each.host for each in pods),
        process_indices=tuple(each.index for each in pods if each.index is not None),
        since_ns=since_ns,
        cost=None if since_ns is None else cost_of(since_ns, found.now_ns),
        evidence=tuple(evidence),
        next=_commands(cluster, limit, found, large.name),
    )


def _subject(found: Waiting, name: str, is_pod: bool) -> str:
    return f"Pod {name}" if is_pod else f"The pods of {name}"


def _requests(limits: tuple[SizeLimit, ...]) -> str:
    return ", ".join(amount(limit.resource, limit.requested) for limit in limits)


def _limits(limits: tuple[SizeLimit, ...]) -> str:
    return "; ".join(
        f"it requests {amount(limit.resource, limit.requested)}, and "
        + (
            f"the largest node that it may use, {limit.node.name}, has {amount(limit.resource, limit.largest)}"
            if limit.node is not None
            else f"no node that it may use has any {limit.resource}"
        )
        for limit in limits
    )


def _commands(cluster: KubernetesFacts, limit: SizeLimit, found: Waiting, name: str) -> tuple[NextCommand, ...]:
    commands = []
    if limit.largest > 0:
        resource = limit.resource
        commands.append(
            NextCommand("", f"request at most {amount(resource, limit.largest)} a pod: the largest that fits")
        )
    commands.append(get_nodes(cluster, limit.resource))
    pod = next((pod for pod in found.pods if pod.name == name), None)
    if pod is not None:
        commands.append(describe_pod(cluster, pod))
    else:
        commands.append(
            NextCommand(f"kubectl get jobs{options_of(cluster, cluster.namespace)}", "shows the jobs of the namespace")
        )
    return tuple(commands)


RULE = Rule(
    id="B1",
    title="a request above any node",
    needs=("the pods of the job, and all nodes, in Kubernetes",),
    judge=judge,
    thresholds=(WAITS,),
    replaces=("W1", "W3"),
    example=(
        "Pod train-0-x7k2p can never start: it requests 8 google.com/tpu, and the largest node that it may use, n-7, "
        "has 4 google.com/tpu."
    ),
)
