"""W3: the autoscaler cannot add a node for pods of the job. Pure."""

from __future__ import annotations

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.pod_reasons import describe_pod, options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.waiting import (
    SCALE_UP_SECONDS,
    WAITS,
    cost_of,
    event_ref,
    lacks_capacity,
    oversized,
    pod_ref,
    pods_text,
    refused_by_autoscaler,
    scaling_up,
    since_text,
    unscheduled,
    waiting_of,
)
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Part, Verdict, VerdictClass


def judge(facts: Facts) -> Judgement:
    """Return that the autoscaler has no capacity; None if it has not refused."""
    found = waiting_of(facts, RULE.id)
    if found is None or isinstance(found, NotChecked):
        return found
    cluster, pods = found.cluster, unscheduled(found.pods)
    refused = refused_by_autoscaler(cluster, pods)
    if not refused or scaling_up(cluster, pods, found.now_ns) is not None:
        return None
    event = next((each for each in reversed(refused) if each.reason == "FailedScaleUp"), refused[-1])
    since_ns = min(each.created_ns or found.now_ns for each in pods)
    pod = next((each for each in pods if each.uid == event.object_uid), pods[0])
    condition = pod.condition("PodScheduled")
    message = one_line(event.message, 240).strip().rstrip(".")
    is_capacity = lacks_capacity(event)
    what = "has no capacity" if is_capacity else "has no node pool that would fit"
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.WAITING,
        sentence=(
            f"The autoscaler {what}: {pods_text(cluster, pods)} without a node "
            f"{since_text(since_ns, found.now_ns)}: {message}."
        ),
        blame=Blame.SYSTEM if is_capacity else Blame.USER,
        confidence=Confidence.PROVEN,
        part=Part.INITIATING if is_capacity or oversized(cluster, pods) is None else Part.CONTRIBUTING,
        hosts=tuple(each.host for each in pods),
        process_indices=tuple(each.index for each in pods if each.index is not None),
        since_ns=since_ns,
        cost=cost_of(since_ns, found.now_ns),
        evidence=(event_ref(event), pod_ref(pod, condition.message if condition is not None else "Unschedulable")),
        next=(
            describe_pod(cluster, pod),
            NextCommand(
                "kubectl get configmap cluster-autoscaler-status --output yaml" + options_of(cluster, "kube-system"),
                "shows the limits of each node pool, and its last errors",
            ),
        ),
    )


RULE = Rule(
    id="W3",
    title="the autoscaler has no capacity",
    needs=("the pods of the job and their events in Kubernetes",),
    judge=judge,
    thresholds=(
        WAITS,
        Threshold("scale up", f"{SCALE_UP_SECONDS:g} s", "the autoscaler's max-node-provision-time"),
    ),
    replaces=("W1",),
    example=(
        "The autoscaler has no capacity: 4 of 8 pods of train without a node since 16:02:11 UTC (12 min 0 s): Node "
        "scale up in zones us-central1-a associated with this pod failed: GCE out of resources."
    ),
)
