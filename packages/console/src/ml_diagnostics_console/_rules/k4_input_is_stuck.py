"""K4: the process that the others wait for reads input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stuck import BUSY_SHARE, Kind, StuckJob, Suspect, stuck_job
from ml_diagnostics_console._rules.stuck_texts import (
    NEEDS,
    THRESHOLDS,
    cost_of,
    duration,
    evidence_of,
    frames_of_suspects,
    not_checked,
    shell,
    stacks_command,
    waiting_text,
    when,
)
from ml_diagnostics_console._rules.wording import hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, Verdict, VerdictClass

__all__ = ["RULE"]

_IDLE_BYTES_PER_SECOND: Final = 100_000.0
"""The traffic of a host that reads nothing for its job: heartbeats, logs and metrics."""
_DISK, _NETWORK = "host_disk_read_throughput", "host_network_receive_throughput"
_CHANNELS: Final = (
    (re.compile(r"^(?:nfs|rpc)_|^rpc_wait"), "NFS"),
    (re.compile(r"^(?:fuse|request_wait_answer)"), "FUSE, such as Cloud Storage FUSE"),
    (re.compile(r"^(?:ceph|lustre|ll_|cl_sync|gpfs)"), "the shared file system"),
    (re.compile(r"pipe_"), "a pipe"),
    (re.compile(r"unix_stream|sock_|skb_|tcp_|inet_"), "a socket"),
    (re.compile(r"^(?:io_schedule|folio_wait|wait_on_page|blk_|submit_bio)"), "a disk"),
    (re.compile(r"^do_wait"), "a child process"),
)
"""Functions of the kernel in which a process waits, and for what; `wchan` of /proc."""


def _judge(facts: Facts) -> Judgement:
    job = stuck_job(facts)
    if job is None:
        return not_checked("K4", facts)
    if job.kind is not Kind.INPUT:
        return None
    processes = [suspect.process for suspect in job.suspects]
    source = next((text for suspect in job.suspects if (text := _waits_for(suspect))), "")
    idle = _idle(facts, job, hosts_of(processes))
    is_asleep = any(_is_asleep(suspect) for suspect in job.suspects)
    is_sure = bool(source) or bool(idle) or is_asleep or (job.waiting is not None and job.waiting.is_marked)
    return Verdict(
        rule="K4",
        verdict_class=VerdictClass.STUCK,
        sentence=_sentence(job, source, idle, is_sure=is_sure),
        blame=Blame.USER,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=job.step,
        since_ns=job.since_ns,
        ended_ns=job.until_ns if job.is_over else None,
        cost=cost_of(job),
        evidence=(*evidence_of(job), *(curve.ref("last") for curve in idle)),
        next=_next(facts, job, source),
    )


def _sentence(job: StuckJob, source: str, idle: Sequence[Curve], *, is_sure: bool) -> str:
    processes = [suspect.process for suspect in job.suspects]
    on = f"all {len(processes)} processes" if job.waiting is None and len(processes) > 1 else named(processes)
    waits = f", which waits for {source}" if source else ""
    possibly = "" if is_sure else "possibly "
    others = f"; {waiting_text(job)}" if job.waiting is not None else ""
    quiet = "; the host reads nothing from disk or network" if idle else ""
    where = f"{possibly}input is stuck on {on} in {frames_of_suspects(job)}{waits}{when(job)}"
    return f"{where}{others}{quiet}; {duration(job)}"


def _waits_for(suspect: Suspect) -> str:
    """Return what a process waits for, by the kernel: `NFS`, `a pipe`; empty if it is not known."""
    channels = suspect.kernel.wait_channels if suspect.kernel is not None else ()
    for channel in reversed(channels):
        for pattern, text in _CHANNELS:
            if pattern.search(channel):
                return f"{text} ({channel})"
    return ""


def _is_asleep(suspect: Suspect) -> bool:
    kernel = suspect.kernel
    if kernel is None or kernel.cpu_seconds is None or not kernel.seconds:
        return False
    return kernel.states[-1:] in (("S",), ("D",)) and kernel.cpu_seconds < BUSY_SHARE * kernel.seconds


def _idle(facts: Facts, job: StuckJob, hosts: Sequence[str]) -> tuple[Curve, ...]:
    """Return the throughputs of disk and network of the hosts, if all of them are idle since the job is stuck."""
    curves = [curve for host in hosts for name in (_DISK, _NETWORK) for curve in metrics_of(facts).of(name, host=host)]
    found = [(curve, curve.between(job.since_ns, job.until_ns)[1:]) for curve in curves]
    if not found or any(not values or max(values) >= _IDLE_BYTES_PER_SECOND for _, values in found):
        return ()
    return tuple(curve for curve, _ in found[:2])


def _next(facts: Facts, job: StuckJob, source: str) -> tuple[NextCommand, ...]:
    process = job.suspects[0].process
    stacks = stacks_command(facts, [process], is_over=job.is_over)
    if job.is_over:
        return (stacks,)
    if source.startswith(("NFS", "FUSE", "the shared", "a disk")):
        test = "df -hT && timeout 10 ls DATA_FOLDER"
        return (shell(facts, process, f"sh -c '{test}'", "shows if the file system of the input answers"), stacks)
    return (
        shell(facts, process, f"ls -l /proc/{process.pid}/fd", "the files and sockets that the input is read from"),
        stacks,
    )


RULE = Rule(
    id="K4",
    title="input is stuck",
    needs=(*NEEDS, "for the file system: the kernel's view of the process; for idle hosts: their system metrics"),
    judge=_judge,
    thresholds=(
        *THRESHOLDS,
        Threshold("idle (bytes/s)", _IDLE_BYTES_PER_SECOND, "heartbeats, logs and metrics of a job take less"),
        Threshold("asleep (CPU seconds per second)", BUSY_SHARE, "as in K1s"),
    ),
    example="input is stuck on host-3 in next_batch (data.py:40), which waits for NFS (rpc_wait_bit_killable) at step "
    "4,210 (16:02:11 UTC); the 7 others wait in train_step (train.py:88); no progress for 12 min 0 s",
    replaces=("K1",),
)
