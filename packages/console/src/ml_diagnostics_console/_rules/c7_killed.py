"""C7: a process was killed from outside, and neither memory nor a request to stop explains it."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts, Unknown
from ml_diagnostics_console._rules.causes import Cause, is_gone, signal_of
from ml_diagnostics_console._rules.crashes import command, crash, logs_around
from ml_diagnostics_console._rules.leads import ORDER_OF_ENDS, lead_of
from ml_diagnostics_console._rules.pod_reasons import OF_NODES, kubernetes_reason, pod_commands
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.wording import clock
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked

__all__ = ["RULE"]

_WHY_NOT: Final = "the end of {} is not recorded: use `with diagnose(...)`, or give --kubernetes CONTEXT"


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a process that was killed."""
    lead = lead_of(facts)
    if lead is None or lead.cause not in (Cause.KILLED, Cause.SILENT):
        return None
    process = lead.process
    reason = kubernetes_reason(facts, process)
    if lead.cause is Cause.SILENT and reason is None:
        return NotChecked("C7", _WHY_NOT.format(process.name))
    if lead.cause is Cause.SILENT:  # Kubernetes reports the end that the process could not record.
        lead = lead._replace(confidence=Confidence.PROVEN)
    verb = "were" if len(lead.processes) > 1 else "was"
    signal = signal_of(process)
    what = f"{verb} killed" if signal in ("SIGKILL", "") else f"{verb} ended by {signal}"
    if not signal and reason is None:
        what = f"{verb} killed, or called os._exit,"
    is_unrecorded = all(is_gone(each) for each in lead.processes)
    after = f": {reason.text}" if reason is not None else _unexplained(process)
    if is_unrecorded and reason is None:
        after = f": its process is gone, and recorded no end; its last event was at {clock(process.last_event_ns)}"
    asked_kubernetes = not isinstance(facts.kubernetes, Unknown)
    describe = command(facts, "kubectl describe pods", "see if it was evicted, deleted, or on a node that failed")
    commands = list(pod_commands(facts, process)) or ([describe] if asked_kubernetes else [])
    if is_unrecorded:
        commands.append(NextCommand("with diagnose(debug_config):", "records the exit reason of the next attempt"))
    elif not asked_kubernetes:
        commands.append(
            command(
                facts,
                "mldiagnostics ssh RUN HOST -- dmesg".replace("HOST", process.host or "HOST"),
                "see if the kernel killed it",
            )
        )
    return crash(
        facts,
        lead,
        "C7",
        what,
        after=after,
        blame=Blame.UNKNOWN if reason is None else reason.blame,
        confidence=Confidence.PROVEN if signal or reason is not None else Confidence.LIKELY,
        refs=(*process.end_refs[:1], *(() if reason is None else (reason.ref,))),
        commands=[*commands, logs_around(facts, process)],
    )


def _unexplained(process: ProcessFacts) -> str:
    """Return what was ruled out, and that the rest is unknown."""
    ruled_out = ["no kill for memory was counted"] if process.end.how == "signal" else []
    if process.console or process.signals:
        ruled_out.append("it was not asked to stop before")
    shown = f" ({', '.join(ruled_out)})" if ruled_out else ""
    signal = f" by {signal_of(process)}" if signal_of(process) == "SIGKILL" else ""
    return f"{signal}{shown}; the sender is not recorded"


RULE = Rule(
    id="C7",
    title="a process was killed from outside",
    needs=(
        "the signal: `with diagnose(...)`",
        "the reason: the states of pods and the conditions of nodes, --kubernetes",
    ),
    judge=_judge,
    thresholds=(
        *ORDER_OF_ENDS,
        *OF_NODES,
    ),
    example="host host-3 was killed at step 30 (16:02:11 UTC): the kubelet evicted pod ml/train-1-x at 16:02:10 UTC: "
    "The node was low on resource: memory; the 3 others failed 0.1 s later because of it",
    replaces=("U0", "K1s"),
)
