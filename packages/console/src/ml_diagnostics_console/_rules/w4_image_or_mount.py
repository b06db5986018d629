"""W4: a container cannot start: its image, its variables or its volumes; and which field is wrong. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.kubernetes_facts import ContainerFacts, KubernetesFacts, PodFacts
from ml_diagnostics_console._rules.pod_reasons import describe_pod, options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.waiting import (
    WAIT_SECONDS,
    WAITS,
    Waiting,
    cost_of,
    event_ref,
    pod_ref,
    pods_text,
    since_text,
    waiting_of,
)
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Ref, Verdict, VerdictClass

MOUNT_FAILURES: Final = 2
_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
    }
)
_CONFIG: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"})
_NAMED: Final = re.compile(
    r"\b(configmap|secret|persistentvolumeclaim)s? \"(?:[^\"/]*/)?([^\"]+)\"|"
    r"couldn't find key (\S+) in (ConfigMap|Secret) (?:[^/\s]*/)?(\S+)",
    re.IGNORECASE,
)
_VOLUME: Final = re.compile(r"(?:for volume|volume(?:s)?=\[|unmounted volumes=\[)\s*\"?([a-z0-9][-a-z0-9.]*)")
_NO_RIGHT: Final = re.compile(r"unauthorized|denied|forbidden|403|401", re.IGNORECASE)
_NO_IMAGE: Final = re.compile(r"not found|manifest unknown|does not exist|404|invalid reference", re.IGNORECASE)
_BUSY: Final = re.compile(r"timeout|timed out|toomanyrequests|429|503|connection|no such host", re.IGNORECASE)


class _Fault(NamedTuple):
    pod: PodFacts
    what: str
    """`the image cannot be pulled`."""
    field: str
    """The field, with its value; empty if it is not known."""
    message: str
    ref: Ref
    is_of_user: bool
    check: NextCommand | None = None


def judge(facts: Facts) -> Judgement:
    """Return the field that is wrong; None if no container waits for such a reason."""
    found = waiting_of(facts, RULE.id)
    if found is None or isinstance(found, NotChecked):
        return found
    faults = [fault for pod in _waiting_pods(found) if (fault := _fault_of(found, pod)) is not None]
    if not faults:
        return None
    fault = faults[0]
    pods = [each.pod for each in faults if each.what == fault.what]
    since_ns = min(pod.created_ns or found.now_ns for pod in pods)
    field = (
        f": {fault.field} is wrong" if fault.field and fault.is_of_user else f" ({fault.field})" if fault.field else ""
    )
    commands = [describe_pod(found.cluster, fault.pod)]
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.WAITING,
        sentence=(
            f"{fault.what[0].upper()}{fault.what[1:]}{field}, for {pods_text(found.cluster, pods)} "
            f"{since_text(since_ns, found.now_ns)}: {fault.message}."
        ),
        blame=Blame.USER if fault.is_of_user else Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        hosts=tuple(pod.host for pod in pods),
        process_indices=tuple(pod.index for pod in pods if pod.index is not None),
        since_ns=since_ns,
        cost=cost_of(since_ns, found.now_ns),
        evidence=tuple(each.ref for each in faults),
        next=(*([fault.check] if fault.check is not None else []), *commands),
    )


def _waiting_pods(found: Waiting) -> list[PodFacts]:
    """Return the pods that may wait for a container: also those of which another container runs already."""
    return [
        pod
        for pod in found.cluster.pods
        if not pod.is_gone
        and pod.deleting_ns is None
        and pod.phase in ("Pending", "Running")
        and found.now_ns - (pod.created_ns or 0) >= WAIT_SECONDS * 1e9
    ]


def _fault_of(found: Waiting, pod: PodFacts) -> _Fault | None:
    for container in pod.containers:
        if container.waiting_reason in _IMAGE:
            return _of_image(found.cluster, pod, container)
        if container.waiting_reason in _CONFIG:
            return _of_config(found.cluster, pod, container)
        fault = next((end for end in container.ends if end.reason in ("StartError", "ContainerCannotRun")), None)
        if fault is not None:
            return _of_command(pod, container, fault.message)
    return _of_mount(found.cluster, pod) if pod.is_pending else None


def _of_image(cluster: KubernetesFacts, pod: PodFacts, container: ContainerFacts) -> _Fault:
    events = [event for event in cluster.events_of([pod], "Failed") if container.image in event.message]
    texts = [container.waiting_message, *(event.message for event in events)]
    # "Back-off pulling image" names no reason: an event before it does.
    message = next((text for text in texts if text and not text.startswith("Back-off")), texts[0])
    reason = (
        "it may not be pulled"
        if _NO_RIGHT.search(message)
        else "it does not exist"
        if _NO_IMAGE.search(message)
        else ""
    )
    is_busy = not reason and bool(_BUSY.search(message))
    what = "the image cannot be pulled" if not reason else f"the image cannot be pulled since {reason}"
    check = None
    if not is_busy:
        check = NextCommand(
            command_line("gcloud", "artifacts", "docker", "images", "describe", container.image)
            if "-docker.pkg.dev/" in container.image
            else command_line("docker", "manifest", "inspect", container.image),
            "checks from here that the image exists and may be read",
        )
    shown = one_line(message or container.waiting_reason, 240).rstrip(".")
    ref = pod_ref(pod, f"container {container.name} waits: {container.waiting_reason}: {container.waiting_message}")
    return _Fault(pod, what, f"{container.path}.image {container.image}", shown, ref, not is_busy, check)


def _of_config(cluster: KubernetesFacts, pod: PodFacts, container: ContainerFacts) -> _Fault:
    message = container.waiting_message
    if container.waiting_reason in ("RunContainerError", "StartError") or "exec:" in message:
        return _of_command(pod, container, message)
    kind, name, key = _named(message)
    field = _field(pod, kind, name, container.path)
    shown = one_line(message or container.waiting_reason, 240).rstrip(".")
    missing = f"key {key} of {kind} {name}" if key else f"{kind} {name}" if name else ""
    what = f"{missing} does not exist" if missing else f"container {container.name} cannot be created"
    ref = pod_ref(pod, f"container {container.name} waits: {container.waiting_reason}: {message}")
    return _Fault(pod, what, field, shown, ref, True, _existing(cluster, pod, kind, name))


def _of_command(pod: PodFacts, container: ContainerFacts, message: str) -> _Fault:
    shown = one_line(message, 240).rstrip(".") or "the runtime gives no reason"
    ref = pod_ref(pod, f"container {container.name} did not start: {message}")
    return _Fault(
        pod, f"the command of container {container.name} cannot start", f"{container.path}.command", shown, ref, True
    )


def _of_mount(cluster: KubernetesFacts, pod: PodFacts) -> _Fault | None:
    events = [
        event
        for event in cluster.events_of([pod], "FailedMount", "FailedAttachVolume", "FailedMapVolume")
        if event.times >= MOUNT_FAILURES
    ]
    condition = pod.condition("PodScheduled")
    if events:
        event = next((each for each in reversed(events) if _named(each.message)[1]), events[-1])
        message, ref = event.message, event_ref(event)
    elif condition is not None and condition.status == "False" and "persistentvolumeclaim" in condition.message:
        message = condition.message
        ref = pod_ref(pod, message, condition.time_ns)
    else:
        return None
    kind, name, key = _named(message)
    volume = _VOLUME.search(message)
    field = _field(pod, kind, name, "spec.volumes")
    if not field and volume is not None:
        field = _field(pod, "volume", volume[1], "spec.volumes") or f"volume {volume[1]}"
    is_missing = bool(key) or (bool(name) and "not found" in message)
    what = f"{kind} {name} does not exist" if is_missing else "a volume cannot be mounted"
    shown = one_line(message, 240).rstrip(".")
    return _Fault(pod, what, field, shown, ref, is_missing, _existing(cluster, pod, kind, name))


def _named(message: str) -> tuple[str, str, str]:
    """Return the kind and the name of the object that a message misses, and the key in it; empty if it has none."""
    match = _NAMED.search(message)
    if match is None:
        return "", "", ""
    kind, name, key, kind_of_key, name_of_key = match.groups()
    return (kind or kind_of_key).lower(), (name or name_of_key).rstrip(",."), key or ""


def _field(pod: PodFacts, kind: str, name: str, prefix: str) -> str:
    """Return the field of a pod that names an object; the first one below some path, else anywhere."""
    fields = [reference.path for reference in pod.references if (reference.kind, reference.name) == (kind, name)]
    return next((path for path in fields if path.startswith(prefix)), fields[0] if fields else "")


def _existing(cluster: KubernetesFacts, pod: PodFacts, kind: str, name: str) -> NextCommand | None:
    if not name:
        return None
    command = f"{command_line('kubectl', 'get', kind, name)}{options_of(cluster, pod.namespace)}"
    return NextCommand(command, f"shows if {kind} {name} exists in this namespace")


RULE = Rule(
    id="W4",
    title="an image, a variable or a volume is missing",
    needs=("the pods of the job and their events in Kubernetes",),
    judge=judge,
    thresholds=(
        WAITS,
        Threshold(
            "mounts", MOUNT_FAILURES, "the kubelet reports a failure for a volume that is attached seconds later"
        ),
    ),
    example=(
        "The image cannot be pulled since it does not exist: spec.containers[0].image eu.gcr.io/p/train:v7 is wrong, "
        "for pod train-0-x7k2p since 16:02:11 UTC (12 min 0 s): manifest for eu.gcr.io/p/train:v7 not found."
    ),
)
