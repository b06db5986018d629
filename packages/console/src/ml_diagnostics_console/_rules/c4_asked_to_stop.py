"""C4: a process was asked to stop by SIGTERM: it saved, ended without, did not end in time, or ran on."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.asked import GRACE_SECONDS, Asked, asked_of, is_graceful, saved_state
from ml_diagnostics_console._rules.causes import Cause, own_clock_ns, signal_of, titles
from ml_diagnostics_console._rules.crashes import command, crash, error_of, logs_around
from ml_diagnostics_console._rules.leads import Lead, lead_of
from ml_diagnostics_console._rules.pod_reasons import OF_NODES, kubernetes_reason, pod_commands
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import at, clock, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Verdict, VerdictClass

__all__ = ["RULE"]

_NEEDS_RUN: Final = (
    "the process that was asked to stop first (no console: start the job with `python -m cloud_tpu_diagnostics run --`)"
)
_HOW_TO_SAVE: Final = NextCommand(
    "if multihost_utils.reached_preemption_sync_point(step): checkpointer.save(step, state)",
    "save in each step at which JAX has received SIGTERM",
)


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a request to stop."""
    lead = lead_of(facts)
    if lead is not None and lead.cause is Cause.INTERRUPTED:
        return _interrupted(facts, lead)
    if lead is not None and lead.cause is Cause.ASKED:
        return None if is_graceful(facts, lead) else _asked(facts, lead)
    if lead is None:
        return _still_running(facts) if facts.is_live else None
    is_seen = any(process.console or process.signals for process in facts.processes)
    return None if is_seen else NotChecked("C4", _NEEDS_RUN)


def _asked(facts: Facts, lead: Lead) -> Verdict:
    process = lead.process
    asked = asked_of(process) or Asked(None, "", process.end_refs[:1])
    reason = kubernetes_reason(facts, process)
    _, saved = saved_state(facts, process)
    requested = f" at {clock(asked.time_ns)}" if asked.time_ns is not None else ""
    sender = f", {asked.sender}," if asked.sender else ""
    verb = "were" if len(lead.processes) > 1 else "was"
    after = f"; {saved}" if saved else "; it is not recorded if its state was saved"
    after += f"; {reason.text}" if reason is not None else ""
    return crash(
        facts,
        lead,
        "C4",
        f"{verb} asked to stop by SIGTERM{requested}{sender} and {_outcome(facts, process, asked)}",
        after=after,
        blame=Blame.PREEMPTION if reason is None else reason.blame,
        confidence=Confidence.PROVEN,
        refs=(*asked.refs, *((reason.ref,) if reason is not None else ())),
        commands=[
            command(facts, "mldiagnostics show RUN", "see which steps were kept"),
            _HOW_TO_SAVE,
            *pod_commands(facts, process),
        ],
    )


def _outcome(facts: Facts, process: ProcessFacts, asked: Asked) -> str:
    """Return what became of a process after the request."""
    end = process.end
    waited: float | None = None
    if asked.time_ns is not None and end.ended_ns is not None:
        waited = max(0.0, (own_clock_ns(facts, process, end.ended_ns) - asked.time_ns) / 1e9)
    within = "" if waited is None else f" {format_duration(waited)} later"
    signal = signal_of(process)
    if signal == "SIGKILL":
        return f"did not end{'' if waited is None else f' in {format_duration(waited)}'}: it was killed"
    if signal == "SIGTERM":
        return f"ended{within}" if titles(process) else f"ended by it{within}, since nothing handled it,"
    if titles(process):
        return f"ended{within} with {error_of(process)}"
    if end.how == "clean" or end.exit_code == 0:
        handled = process.end_fields.get("sigterm_handler") == "python"
        is_late = waited is not None and waited > GRACE_SECONDS
        if is_late or (not handled and process.sigterm_handlers):
            return f"did not stop: it ran on{'' if waited is None else f' for {format_duration(waited)}'} to its end"
        return f"ended{within} with exit code 0"
    return f"ended{within} with exit code {end.exit_code}" if end.exit_code is not None else f"ended{within}"


def _interrupted(facts: Facts, lead: Lead) -> Verdict:
    return crash(
        facts,
        lead,
        "C4",
        "was interrupted from its terminal, by SIGINT" if signal_of(lead.process) else "was interrupted",
        after=f": {error_of(lead.process)}" if titles(lead.process) else "",
        blame=Blame.USER,
        commands=[logs_around(facts, lead.process)],
    )


def _still_running(facts: Facts) -> Judgement:
    """Return the verdict on a job that was asked to stop, and has not ended."""
    asked = [
        (seen.time_ns, seen, process)
        for process in facts.processes
        if not process.has_ended and (seen := asked_of(process)) is not None and seen.time_ns is not None
    ]
    if not asked:
        return None
    time_ns, seen, process = min(asked, key=lambda found: found[0])
    processes = [process for _, _, process in asked]
    seconds = max(0.0, (facts.now_ns - time_ns) / 1e9)
    is_late = seconds > GRACE_SECONDS
    verb = "were" if len(processes) > 1 else "was"
    state = "has not ended since" if is_late else "may still save"
    return Verdict(
        rule="C4",
        verdict_class=VerdictClass.CRASH,
        sentence=f"host{'s' if len(processes) > 1 else ''} {named(processes)} {verb} asked to stop "
        f"{at(process.step, time_ns)} by SIGTERM, {format_duration(seconds)} ago, and {state}",
        blame=Blame.PREEMPTION,
        confidence=Confidence.PROVEN,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=process.step,
        since_ns=time_ns,
        evidence=seen.refs,
        next=(command(facts, "mldiagnostics show RUN", "see which steps are kept"), _HOW_TO_SAVE),
    )


RULE = Rule(
    id="C4",
    title="a process was asked to stop",
    needs=(
        "SIGTERM, its sender and time, and what JAX wrote: `python -m cloud_tpu_diagnostics run --`",
        "or a handler in Python: machinelearning_run",
        "whether it saved: GoodputRecorder's record_checkpoint_progress or CheckpointLogger",
    ),
    judge=_judge,
    thresholds=(
        Threshold(
            "time to end after SIGTERM, at most",
            f"{GRACE_SECONDS:.0f} s",
            "Kubernetes' default terminationGracePeriodSeconds",
        ),
        *OF_NODES,
    ),
    example="host host-1 was asked to stop by SIGTERM at 16:01:41 UTC, from outside of its container, and did not end "
    "in 30.0 s: it was killed at step 30 (16:02:11 UTC); nothing was saved after the request: the last step is 30, and "
    "the last checkpoint is of step 20",
    replaces=("C7", "U0"),
)
