"""B7: containers of the job end before anything is recorded: their exit codes are all that is known. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_count, one_line

from ml_diagnostics_console._facts.facts import Fact, Facts
from ml_diagnostics_console._facts.kubernetes_facts import ContainerEnd, ContainerFacts, KubernetesFacts, PodFacts
from ml_diagnostics_console._rules.pod_reasons import describe_pod, options_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.waiting import cost_of, pod_ref
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Verdict, VerdictClass

_MEANINGS: Final = {
    126: "its command cannot be executed",
    127: "its command does not exist in the image",
    137: "it was killed (SIGKILL)",
    139: "it crashed (SIGSEGV)",
    143: "it was asked to stop (SIGTERM)",
}
"""Exit codes of shells, and 128 with the number of a signal."""
_NOT_STARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""W4 has the field that is wrong."""


class _Ended(NamedTuple):
    pod: PodFacts
    container: ContainerFacts
    end: ContainerEnd


def judge(facts: Facts) -> Judgement:
    """Return how containers ended; None if none did, or processes have recorded more than that."""
    if facts.attempts:
        return None
    if not isinstance(facts.kubernetes, Fact):
        return NotChecked(RULE.id, facts.kubernetes.why, facts.kubernetes.is_by_choice)
    cluster = facts.kubernetes.value
    ended = sorted(_ended(cluster), key=lambda each: each.end.ended_ns or 0)
    if not ended:
        return None
    pod, container, end = ended[0]
    pods = {each.pod.uid for each in ended}
    since_ns = end.started_ns or pod.created_ns
    times = f", and was restarted {format_count(container.restarts, 'time')}" if container.restarts else ""
    last = f" at {clock(end.ended_ns)}" if end.ended_ns is not None else ""
    others = f", as in {format_count(len(pods) - 1, 'other pod')}," if len(pods) > 1 else ""
    is_evicted = bool(pod.reason) and pod.phase == "Failed"
    now_ns = facts.kubernetes.as_of_ns or facts.now_ns
    return Verdict(
        rule=RULE.id,
        verdict_class=VerdictClass.BEFORE_START,
        sentence=(
            f"Container {container.name} of pod {pod.name}{others} ended{last} {_how(pod, end)}{times}; nothing was "
            "recorded before."
        ),
        blame=Blame.SYSTEM if is_evicted else Blame.USER if end.exit_code != 137 else Blame.UNKNOWN,
        confidence=Confidence.PROVEN,
        hosts=tuple(dict.fromkeys(each.pod.host for each in ended)),
        process_indices=tuple(sorted({each.pod.index for each in ended if each.pod.index is not None})),
        since_ns=end.ended_ns,
        cost=None if since_ns is None else cost_of(since_ns, now_ns),
        evidence=tuple(pod_ref(each.pod, _proof(each), each.end.ended_ns) for each in ended[:3]),
        next=_commands(cluster, ended[0]),
    )


def _ended(cluster: KubernetesFacts) -> list[_Ended]:
    """Return the last failure of each container that does not run."""
    return [
        _Ended(pod, container, container.ends[0])
        for pod in cluster.pods
        if not pod.is_gone
        for container in pod.containers
        if container.ends and not container.is_running
        if container.ends[0].exit_code != 0 and container.ends[0].reason not in _NOT_STARTED
    ]


def _how(pod: PodFacts, end: ContainerEnd) -> str:
    code = "" if end.exit_code is None else f"with exit code {end.exit_code}"
    if end.reason == "OOMKilled":
        return f"{code}, since it was out of memory".lstrip(", ")
    if pod.reason and pod.phase == "Failed":
        message = one_line(pod.message, 160).strip().rstrip(".")
        return f"{code} ({pod.reason}{f': {message}' if message else ''})".lstrip()
    meaning = _MEANINGS.get(end.exit_code or 0)
    return code + (f", since {meaning}" if meaning else "")


def _proof(ended: _Ended) -> str:
    text = one_line(ended.end.message, 160).strip()
    how = f"{ended.end.reason or 'ended'}, exit code {ended.end.exit_code}"
    return f"container {ended.container.name}: {how}" + (f": {text}" if text else "")


def _commands(cluster: KubernetesFacts, ended: _Ended) -> tuple[NextCommand, ...]:
    previous = " --previous" if ended.container.waiting_reason else ""
    command = command_line("kubectl", "logs", ended.pod.name, "--container", ended.container.name) + previous
    return (
        NextCommand(command + options_of(cluster, ended.pod.namespace), "shows what it printed"),
        describe_pod(cluster, ended.pod),
    )


RULE = Rule(
    id="B7",
    title="a container ends before anything is recorded",
    needs=("the pods of the job in Kubernetes",),
    judge=judge,
    example=(
        "Container main of pod train-0-x7k2p ended at 16:02:11 UTC with exit code 127, since its command does not "
        "exist in the image, and was restarted 7 times; nothing was recorded before."
    ),
)
