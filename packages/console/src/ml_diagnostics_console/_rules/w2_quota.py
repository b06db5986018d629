"""W2: a quota holds the job back: Kueue's, or a ResourceQuota of the namespace. Pure."""

from __future__ import annotations

import re
from typing import Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.kubernetes_facts import AdmissionFacts, Condition, EventFacts
from ml_diagnostics_console._facts.kubernetes_objects import quantity
from ml_diagnostics_console._rules.pod_reasons import options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.waiting import (
    WAIT_SECONDS,
    WAITS,
    Waiting,
    amount,
    cost_of,
    event_ref,
    since_text,
    waiting_of,
)
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Ref, Verdict, VerdictClass

EVENT_SECONDS: Final = 900.0
_EXCEEDED: Final = re.compile(r"exceeded quota: ([^,]+), requested: (.+), used: (.+), limited: (.+)")
_NEVER: Final = re.compile(r"doesn't exist|does not exist|is inactive|is stopped|Inadmissible")


def judge(facts: Facts) -> Judgement:
    """Return that a quota holds the job back; None if none does."""
    found = waiting_of(facts, RULE.id)
    if found is None or isinstance(found, NotChecked):
        return found
    for admission in found.cluster.admissions:
        verdict = _of_kueue(found, admission)
        if verdict is not None:
            return verdict
    return _of_namespace(found)


def _of_kueue(found: Waiting, admission: AdmissionFacts) -> Verdict | None:
    held = _held(admission)
    since_ns = admission.created_ns or found.now_ns
    if held is None or found.now_ns - since_ns < WAIT_SECONDS * 1e9:
        return None
    message = one_line(held.message, 240).strip().rstrip(".") or held.reason or "it reports no reason"
    never = bool(_NEVER.search(held.message)) or not admission.is_active
    if not admission.is_active:
        message = f"spec.active of the Workload is false ({message})"
    queue = f"queue {admission.queue}" if admission.queue else "a queue"
    shows = f"Workload {admission.name}, condition {held.type} is {held.status}: {message}"
    options = options_of(found.cluster, admission.namespace)
    commands = [
        NextCommand(
            f"kubectl describe workloads.kueue.x-k8s.io {command_line(admission.name)}{options}",
            "shows what Kueue waits for",
        )
    ]
    if admission.queue:
        commands.append(
            NextCommand(
                f"kubectl describe localqueues.kueue.x-k8s.io {command_line(admission.queue)}{options}",
                "shows the quota of the queue, and which workloads use it",
            )
        )
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.WAITING,
        sentence=(
            f"Kueue holds {admission.owner or admission.name} in {queue} {since_text(since_ns, found.now_ns)}: "
            f"{message}."
        ),
        blame=Blame.USER if never else Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        since_ns=since_ns,
        cost=cost_of(since_ns, found.now_ns),
        evidence=(Ref(admission.ref, "kubernetes", held.time_ns, "", shows),),
        next=tuple(commands),
    )


def _held(admission: AdmissionFacts) -> Condition | None:
    """Return the condition that holds a workload back; None if it was admitted or has ended."""

    def is_true(kind: str) -> bool:
        condition = admission.condition(kind)
        return condition is not None and condition.status == "True"

    if is_true("Admitted") or is_true("Finished"):
        return None
    evicted = admission.condition("Evicted")
    reserved = admission.condition("QuotaReserved")
    if is_true("QuotaReserved"):  # The quota is there: a check of its admission is not.
        return admission.condition("Admitted") or reserved
    if reserved is not None:
        return reserved
    return evicted or Condition("QuotaReserved", "False", "Pending", "Kueue has not judged it yet: is Kueue running?")


def _of_namespace(found: Waiting) -> Verdict | None:
    """Return that the API server refuses pods of the job because of a ResourceQuota."""
    cluster = found.cluster
    refused = [
        event
        for event in cluster.events
        if event.reason == "FailedCreate" and "exceeded quota" in event.message
        if found.now_ns - (event.last_ns or 0) <= EVENT_SECONDS * 1e9
    ]
    missing = (cluster.expected_pods or 1) - sum(not pod.is_gone and pod.phase != "Failed" for pod in cluster.pods)
    if not refused or missing <= 0:
        return None
    event = refused[-1]
    match = _EXCEEDED.search(event.message)
    since_ns = min(each.first_ns or found.now_ns for each in refused)
    name = match[1].strip() if match is not None else ""
    details, never = _exceeded(match) if match is not None else (one_line(event.message, 240), False)
    quota = next((quota for quota in cluster.quotas if quota.name == name), None)
    evidence = [event_ref(event)]
    if quota is not None:
        used = ", ".join(f"{key} {amount(key, number)} of {quota.hard.get(key)}" for key, number in quota.used.items())
        evidence.append(Ref(f"resourcequota/{quota.uid}", "kubernetes", None, "", f"quota {name} uses {used}"))
    options = options_of(cluster, cluster.namespace)
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.WAITING,
        sentence=(
            f"The quota {name or 'of the namespace'} of namespace {cluster.namespace} holds pods of "
            f"{_owner(event)} back {since_text(since_ns, found.now_ns)}: {details}."
        ),
        blame=Blame.USER if never else Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        since_ns=since_ns,
        cost=cost_of(since_ns, found.now_ns),
        evidence=tuple(evidence),
        next=(
            NextCommand(
                command_line("kubectl", "describe", "resourcequota", *filter(None, (name,))) + options,
                "shows the quota and its use",
            ),
            NextCommand(f"kubectl get pods{options}", "shows the pods that use the quota"),
        ),
    )


def _owner(event: EventFacts) -> str:
    return f"{event.kind} {event.name}"


def _exceeded(match: re.Match[str]) -> tuple[str, bool]:
    """Return what a quota lacks, and True if the request alone is more than all of it."""
    requested, used, limited = (_amounts(match[number]) for number in (2, 3, 4))
    parts, never = [], False
    for resource, number in requested.items():
        plain = resource.removeprefix("requests.").removeprefix("limits.")
        limit = limited.get(resource)
        if limit is None:
            continue
        never = never or number > limit
        parts.append(
            f"a pod requests {amount(plain, number)}, and {amount(plain, used.get(resource, 0.0))} of "
            f"{amount(plain, limit)} are in use"
        )
    return "; ".join(parts) or one_line(match[0], 240), never


def _amounts(text: str) -> dict[str, float]:
    pairs = (pair.partition("=") for pair in text.split(","))
    amounts = {key.strip(): quantity(value.strip()) for key, _, value in pairs}
    return {key: number for key, number in amounts.items() if number is not None}


RULE = Rule(
    id="W2",
    title="held by a quota",
    needs=("the Workload of Kueue, or the events of the Job and the ResourceQuota, in Kubernetes",),
    judge=judge,
    thresholds=(WAITS, Threshold("refused", f"{EVENT_SECONDS:g} s", "a Job tries again after at most 10 min")),
    example=(
        "Kueue holds train in queue research since 16:02:11 UTC (12 min 0 s): couldn't assign flavors to pod set "
        "workers: insufficient unused quota for google.com/tpu in flavor tpu-v5e, 16 more needed."
    ),
)
