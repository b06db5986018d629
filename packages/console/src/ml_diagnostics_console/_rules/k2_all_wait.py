"""K2: all processes wait in the same frame, and no one is elsewhere: a device, the network, or a missing process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.devices import in_force
from ml_diagnostics_console._rules.heartbeats import Unresponsive, unresponsive_processes
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stuck import Kind, StuckJob, missing_of, stuck_job
from ml_diagnostics_console._rules.stuck_texts import (
    NEEDS,
    THRESHOLDS,
    cost_of,
    duration,
    evidence_of,
    not_checked,
    stacks_command,
    when,
)
from ml_diagnostics_console._rules.wording import command_line, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, Ref, Verdict, VerdictClass

__all__ = ["RULE"]

QUEUE: Final = "tpu_hlo_queue_size"
IDLE: Final = "tpu_idle_duration"
_LEAST_SAMPLES: Final = 2


class _Devices(NamedTuple):
    """The state of the devices since the job is stuck."""

    host: str
    text: str
    is_late_host: bool
    refs: tuple[Ref, ...]


def _judge(facts: Facts) -> Judgement:
    job = stuck_job(facts)
    if job is None:
        return not_checked("K2", facts)
    if job.kind is not Kind.EQUAL or job.waiting is None:
        return None
    unresponsive = unresponsive_processes(facts)
    devices = _devices(facts, job) if unresponsive is None else None
    waiting = job.waiting.processes
    is_host = devices is not None and devices.is_late_host
    hosts = (devices.host,) if devices is not None and not devices.is_late_host else hosts_of(waiting)
    if unresponsive is not None:
        waiting, hosts = unresponsive.processes, hosts_of(unresponsive.processes)
    is_sure = devices is not None or unresponsive is not None or bool(_missing(facts))
    return Verdict(
        rule="K2",
        verdict_class=VerdictClass.STUCK,
        sentence=_sentence(facts, job, devices, unresponsive),
        blame=Blame.USER if is_host else Blame.SYSTEM,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        hosts=hosts,
        process_indices=indices_of([process for process in waiting if process.host in hosts]),
        step=job.step,
        since_ns=job.since_ns,
        ended_ns=job.until_ns if job.is_over else None,
        cost=cost_of(job),
        evidence=(
            *((unresponsive.ref,) if unresponsive is not None else ()),
            *(devices.refs if devices is not None else ()),
            *evidence_of(job),
        ),
        next=_next(facts, job, devices),
    )


def _sentence(facts: Facts, job: StuckJob, devices: _Devices | None, unresponsive: Unresponsive | None) -> str:
    assert job.waiting is not None
    many = len(job.waiting.processes)
    subject = f"{job.waiting.processes[0].name} waits" if many == 1 else f"all {many} processes wait"
    start = f"{subject} in {job.waiting.text}{when(job)}, and none is elsewhere"
    if many == 1:
        start = f"{subject} for its devices in {job.waiting.text}{when(job)}"
    missing = _missing(facts)
    if unresponsive is not None:
        names = named(unresponsive.processes)
        its = (
            "its network is cut, or its machine"
            if len(unresponsive.processes) == 1
            else "their network is cut, or they"
        )
        rest = "is dead" if len(unresponsive.processes) == 1 else "are dead"
        return f"{start}: {names} stopped sending heartbeats, so {its} {rest}; {duration(job)}"
    if missing:
        return f"{start}: {missing}; {duration(job)}"
    if devices is not None:
        return f"{start}: {devices.text}; {duration(job)}"
    return f"{start}: possibly a device or the network is stuck; {duration(job)}"


def _missing(facts: Facts) -> str:
    if facts.attempt is None:
        return ""
    indexes, expected = missing_of(facts.attempt)
    known = len(facts.processes)
    if known >= expected:
        return ""
    which = "process " + ", ".join(map(str, indexes[:5])) if indexes else f"{expected - known} of {expected} processes"
    return f"{which} recorded nothing"


def _devices(facts: Facts, job: StuckJob) -> _Devices | None:
    """Return what the queues of programs and the idle times of the devices show; None if neither is known.

    A queue that is not empty and does not fall: a device does not execute. An empty queue while the idle time grows:
    the devices have nothing to do, so a host is late.
    """
    start_ns, end_ns = job.since_ns, job.until_ns
    for curve in metrics_of(facts).of(QUEUE):
        values = in_force(curve, start_ns, end_ns)
        if len(values) >= _LEAST_SAMPLES and min(values) > 0 and values[-1] >= values[0]:
            core = curve.labels.get("tensorcore") or curve.labels.get("chip") or "its device"
            text = f"{core} of {curve.key.host} executes nothing, with {values[-1]:.0f} programs in its queue"
            return _Devices(curve.key.host, text, False, (curve.ref("last"),))
    queues = [curve for curve in metrics_of(facts).of(QUEUE) if _is_empty(in_force(curve, start_ns, end_ns))]
    idle = [curve for curve in metrics_of(facts).of(IDLE) if _grows(curve, start_ns, end_ns)]
    if queues and idle and len(queues) == len(metrics_of(facts).of(QUEUE)):
        longest = max(idle, key=lambda curve: curve.last)
        seconds = format_duration(longest.last)
        text = f"the devices are idle for {seconds}, and their queues are empty: the hosts send them nothing"
        return _Devices(longest.key.host, text, True, (longest.ref("last"), queues[0].ref("last")))
    return None


def _is_empty(values: Sequence[float]) -> bool:
    return len(values) >= 1 and max(values[1:] or values) == 0


def _grows(curve: Curve, start_ns: int, end_ns: int) -> bool:
    values = in_force(curve, start_ns, end_ns)
    return len(values) >= _LEAST_SAMPLES and values[-1] > values[0] >= 0


def _next(facts: Facts, job: StuckJob, devices: _Devices | None) -> tuple[NextCommand, ...]:
    assert job.waiting is not None
    stacks = stacks_command(facts, job.waiting.processes[:1], is_over=job.is_over)
    if devices is not None and not devices.is_late_host:
        why = "start the job without this host; if the next attempt passes this step, replace it"
        return (NextCommand(command_line("mldiagnostics", "metrics", facts.name, QUEUE), why), stacks)
    metrics = NextCommand(
        command_line("mldiagnostics", "metrics", facts.name), "which host stopped to report metrics first"
    )
    return (stacks, metrics)


RULE = Rule(
    id="K2",
    title="all processes wait in the same frame",
    needs=(*NEEDS, f"for the side that is stuck: the metrics {QUEUE} and {IDLE} of a TPU, or JAX's last lines"),
    judge=_judge,
    thresholds=(
        *THRESHOLDS,
        Threshold("samples of a queue or of idle time", _LEAST_SAMPLES, "a change needs two"),
        Threshold("queue", "not empty and not falling since the last progress", "libtpu: hlo_queue_size"),
    ),
    example="all 8 processes wait in train_step (train.py:88) at step 4,210 (16:02:11 UTC), and none is elsewhere: "
    "tensorcore_0 of host-3 executes nothing, with 12 programs in its queue; no progress for 12 min 0 s",
)
