"""W5: a part of the job never started, and the rest waits for it. Pure."""

from __future__ import annotations

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts, PodFacts
from ml_diagnostics_console._rules.pod_reasons import describe_pod, options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.waiting import (
    WAIT_SECONDS,
    WAITS,
    cost_of,
    event_ref,
    pod_ref,
    since_text,
    waiting_of,
)
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Part, Ref, Verdict, VerdictClass


def judge(facts: Facts) -> Judgement:
    """Return how many pods never started; None if all have, or none has."""
    found = waiting_of(facts, RULE.id)
    if found is None or isinstance(found, NotChecked):
        return found
    cluster = found.cluster
    running = [pod for pod in cluster.pods if not pod.is_gone and pod.phase == "Running" and not pod.is_pending]
    total = cluster.expected_pods
    started_ns = min((pod.created_ns for pod in running if pod.created_ns is not None), default=found.now_ns)
    if not running or found.now_ns - started_ns < WAIT_SECONDS * 1e9:
        return None
    existing = [pod for pod in cluster.pods if not pod.is_gone and pod.phase != "Failed"]
    absent = max(0, (total or 0) - len(existing))
    if not found.pods and not absent:
        return None
    if not found.pods and any(pod.phase in ("Failed", "Succeeded") or pod.deleting_ns for pod in cluster.pods):
        return None  # These have started: they are missing since they ended.
    count, of = len(found.pods) + absent, max(total or 0, len(existing))
    reason, blame, evidence = _reason(cluster, found.pods)
    since_ns = min(started_ns, found.since_ns)
    missing = f"{_names(found.pods)}{reason}" if found.pods else f"{absent} of its pods were never created{reason}"
    job = cluster.name or facts.name
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.WAITING,
        sentence=(
            f"{count} of {of} pods of {job} never started, and the {len(running)} others wait for them "
            f"{since_text(since_ns, found.now_ns)}: {missing}."
        ),
        blame=blame,
        confidence=Confidence.PROVEN,
        # What holds these pods back has a rule of its own, which is the cause.
        part=Part.CONTRIBUTING if found.pods else Part.INITIATING,
        hosts=tuple(pod.host for pod in found.pods),
        process_indices=tuple(pod.index for pod in found.pods if pod.index is not None),
        since_ns=since_ns,
        cost=cost_of(since_ns, found.now_ns),
        evidence=tuple(evidence),
        next=_commands(cluster, found.pods),
    )


def _reason(cluster: KubernetesFacts, pods: tuple[PodFacts, ...]) -> tuple[str, Blame, list[Ref]]:
    """Return the state of the first pod that has not started, as the end of a sentence."""
    if not pods:
        refused = [event for event in cluster.events if event.reason == "FailedCreate"]
        if not refused:
            return "", Blame.UNKNOWN, [Ref(job.ref, "kubernetes", None, "", job.name) for job in cluster.jobs[:1]]
        return f" ({refused[-1].message[:160]})", Blame.SYSTEM, [event_ref(refused[-1])]
    pod = pods[0]
    waiting = next((each for each in pod.containers if each.waiting_reason not in ("", "PodInitializing")), None)
    condition = pod.condition("PodScheduled")
    if condition is not None and condition.status == "False":
        text, shows = f" ({condition.reason})", f"Pending: {condition.reason}: {condition.message}"
    elif waiting is not None:
        text, shows = f" ({waiting.waiting_reason})", f"Pending: container {waiting.name}: {waiting.waiting_reason}"
    else:
        text, shows = "", f"Pending on node {pod.node}" if pod.node else "Pending"
    return text, Blame.SYSTEM, [pod_ref(pod, shows)]


def _names(pods: tuple[PodFacts, ...]) -> str:
    shown = pods[0].name if len(pods) == 1 else f"{pods[0].name} and {len(pods) - 1} more"
    return f"{shown} {'is' if len(pods) == 1 else 'are'} Pending"


def _commands(cluster: KubernetesFacts, pods: tuple[PodFacts, ...]) -> tuple[NextCommand, ...]:
    options = options_of(cluster, cluster.namespace)
    if pods:
        return (describe_pod(cluster, pods[0]), NextCommand(f"kubectl get pods{options}", "shows all pods"))
    job = next((job for job in cluster.jobs if not job.owner), None)
    kind = {"JobSet": "jobsets.jobset.x-k8s.io", "Job": "job"}.get(job.kind, job.kind.lower()) if job else "jobs"
    name = f" {command_line(job.name)}" if job else ""
    return (NextCommand(f"kubectl describe {kind}{name}{options}", "shows why pods were not created"),)


RULE = Rule(
    id="W5",
    title="a part of the job never started",
    needs=("the pods of the job and its Job or JobSet in Kubernetes",),
    judge=judge,
    thresholds=(WAITS,),
    example=(
        "1 of 4 pods of train never started, and the 3 others wait for them since 16:02:11 UTC (12 min 0 s): "
        "train-workers-0-3-x7k2p is Pending (Unschedulable)."
    ),
)
