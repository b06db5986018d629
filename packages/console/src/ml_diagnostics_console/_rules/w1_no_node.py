"""W1: the scheduler has no node for pods of the job. Pure."""

from __future__ import annotations

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_count, one_line

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts, PodFacts
from ml_diagnostics_console._rules.pod_reasons import describe_pod
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.waiting import (
    SCALE_UP_SECONDS,
    WAITS,
    Obstacles,
    amount,
    cost_of,
    event_ref,
    get_nodes,
    largest_free,
    obstacles_of,
    oversized,
    pod_ref,
    pods_text,
    refused_by_autoscaler,
    scaling_up,
    since_text,
    unscheduled,
    waiting_of,
)
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Part, Verdict, VerdictClass


def judge(facts: Facts) -> Judgement:
    """Return that no node fits; None if the scheduler has placed all pods, or something else holds them back."""
    found = waiting_of(facts, RULE.id)
    if found is None or isinstance(found, NotChecked):
        return found
    cluster, pods = found.cluster, unscheduled(found.pods)
    if not pods:
        return None
    pod = pods[0]
    condition = pod.condition("PodScheduled")
    message = condition.message if condition is not None else ""
    if "persistentvolumeclaim" in message:
        return None  # W4: a field names a claim that does not exist.
    since_ns = min(each.created_ns or found.now_ns for each in pods)
    obstacles = obstacles_of(message)
    reasons = one_line(message, 240) if obstacles is None else _reasons(cluster, pod, obstacles)
    adding = scaling_up(cluster, pods, found.now_ns)
    more = f"; the autoscaler adds nodes since {clock(adding.last_ns)}" if adding and adding.last_ns else ""
    events = cluster.events_of(pods, "FailedScheduling")
    evidence = [pod_ref(pod, message, condition.time_ns if condition is not None else None)]
    evidence += [event_ref(event) for event in (*events[-1:], *((adding,) if adding is not None else ()))]
    is_explained = oversized(cluster, pods) is not None or bool(refused_by_autoscaler(cluster, pods))
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.WAITING,
        sentence=f"No node fits {pods_text(cluster, pods)} {since_text(since_ns, found.now_ns)}: {reasons}{more}.",
        blame=Blame.USER if obstacles is not None and obstacles.is_of_user else Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        part=Part.CONTRIBUTING if is_explained else Part.INITIATING,
        hosts=tuple(each.host for each in pods),
        process_indices=tuple(each.index for each in pods if each.index is not None),
        since_ns=since_ns,
        cost=cost_of(since_ns, found.now_ns),
        evidence=tuple(evidence),
        next=_commands(cluster, pod, obstacles),
    )


def _reasons(cluster: KubernetesFacts, pod: PodFacts, obstacles: Obstacles) -> str:
    """Return why each group of nodes does not take the pod, as a list."""
    parts = [_lacking(cluster, pod, resource, count) for resource, count in obstacles.lacking]
    if obstacles.labels:
        labels = ", ".join(f"{key}={value}" for key, value in pod.selector.items())
        field = f"spec.nodeSelector ({labels})" if labels else "the pod's affinity"
        parts.append(f"{format_count(obstacles.labels, 'node')} without the labels of {field}")
    parts += [
        f"{format_count(count, 'node')} with a taint that it does not tolerate ({taint})"
        for taint, count in obstacles.taints
    ]
    if obstacles.cordoned:
        parts.append(f"{format_count(obstacles.cordoned, 'node')} cordoned")
    parts += [f"{format_count(count, 'node')}: {one_line(text, 120)}" for text, count in obstacles.others]
    return f"of {format_count(obstacles.total, 'node')}, " + ", ".join(parts) if parts else "no node is available"


def _lacking(cluster: KubernetesFacts, pod: PodFacts, resource: str, count: int) -> str:
    requested = pod.requests.get(resource)
    details = [f"a pod requests {amount(resource, requested)}"] if requested else []
    free = largest_free(cluster, resource, pod.selector)
    shown = "; ".join([*details, *([free] if free else [])])
    return f"{format_count(count, 'node')} with too little {resource} left" + (f" ({shown})" if shown else "")


def _commands(cluster: KubernetesFacts, pod: PodFacts, obstacles: Obstacles | None) -> tuple[NextCommand, ...]:
    commands = [describe_pod(cluster, pod)]
    if obstacles is not None and obstacles.lacking:
        commands.append(get_nodes(cluster, obstacles.lacking[0][0]))
    elif obstacles is not None and obstacles.labels and pod.selector:
        selector = ",".join(f"{key}={value}" for key, value in pod.selector.items())
        shown = command_line("kubectl", "get", "nodes", "--selector", selector)
        context = f" --context {command_line(cluster.context)}" if cluster.context else ""
        commands.append(NextCommand(shown + context, "shows the nodes that have these labels: none has"))
    return tuple(commands)


RULE = Rule(
    id="W1",
    title="no node fits",
    needs=("the pods of the job in Kubernetes", "nodes, for the largest free one"),
    judge=judge,
    thresholds=(
        WAITS,
        Threshold("scale up", f"{SCALE_UP_SECONDS:g} s", "the autoscaler's max-node-provision-time"),
    ),
    example=(
        "No node fits 4 of 8 pods of train since 16:02:11 UTC (12 min 0 s): of 12 nodes, 4 nodes with too little "
        "google.com/tpu left (a pod requests 4 google.com/tpu; the largest free node, n-7, has 2 google.com/tpu, all "
        "together 6 google.com/tpu), 8 nodes without the labels of spec.nodeSelector (topology=2x4)."
    ),
)
