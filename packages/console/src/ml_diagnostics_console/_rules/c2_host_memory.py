"""C2: the memory of a host, or of its container, ran out."""

from __future__ import annotations

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import Cause, signal_of
from ml_diagnostics_console._rules.crashes import command, crash, error_of, logs_around
from ml_diagnostics_console._rules.host_memory import (
    AT_LIMIT_PERCENT,
    LEAST_GROWTH_PERCENT,
    RECENT_SECONDS,
    WINDOW_SECONDS,
    MemoryUse,
    memory_use,
    shown_memory,
)
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.pod_reasons import pod_commands, was_container_out_of_memory
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console.verdict import Blame, NotChecked

__all__ = ["RULE"]

_NEEDS_METRICS = "the memory of the host is not recorded: machinelearning_run measures it each 10 s"


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a process that ran out of host memory."""
    lead = lead_of(facts)
    if lead is None:
        return None
    process = lead.process
    use = memory_use(facts, process)
    if lead.cause is not Cause.MEMORY:
        is_unsure = lead.cause is Cause.KILLED and not lead.is_whole_job and signal_of(process) in ("", "SIGKILL")
        return NotChecked("C2", _NEEDS_METRICS) if is_unsure and use is None else None
    by_kubernetes = was_container_out_of_memory(facts, process)
    is_counted = process.end.how == "out_of_memory" or by_kubernetes is not None
    if by_kubernetes is not None and lead.confidence is Confidence.POSSIBLE:  # Its own end is not recorded.
        lead = lead._replace(confidence=Confidence.PROVEN)
    is_raised = not is_counted and bool(process.end.exception)
    confidence = Confidence.PROVEN if is_counted or is_raised else Confidence.LIKELY
    what = "ran out of host memory"
    if not is_counted and not is_raised:
        what = "was killed when its memory was nearly used up, probably by the kernel,"
    metric = use.metric if use is not None else "host_memory_utilization"
    commands = [command(facts, f"mldiagnostics metrics RUN {metric} --plot", "find what grows")]
    if use is None or use.mb_per_minute is None:
        commands.append(logs_around(facts, process))
    refs = (() if use is None else use.refs) + (() if by_kubernetes is None else (by_kubernetes.ref,))
    return crash(
        facts,
        lead,
        "C2",
        what,
        after=_after(process, use, is_raised=is_raised),
        blame=Blame.USER,
        confidence=confidence,
        refs=(*process.end_refs[:1], *refs),
        commands=[*commands, *pod_commands(facts, process)],
    )


def _after(process: ProcessFacts, use: MemoryUse | None, *, is_raised: bool) -> str:
    """Return the growth and the limit, as far as they are known."""
    text = f": {error_of(process)}" if is_raised else ""
    if use is None:
        return text
    parts = []
    if use.mb_per_minute is not None:
        parts.append(f"it grew by {use.mb_per_minute:,.0f} MB/min")
    if use.limit_bytes is not None:
        parts.append(f"its limit is {shown_memory(use.limit_bytes)}")
    if is_raised and use.is_recent and use.last_percent < AT_LIMIT_PERCENT:
        in_use = f"only {use.last_percent:.0f} % were in use"
        parts.append(f"{in_use}: one request was too large, or the process has a limit of its own")
    return f"{text}{'; ' if parts else ''}{', '.join(parts)}"


RULE = Rule(
    id="C2",
    title="a host, or its container, ran out of memory",
    needs=(
        "the kernel's count of kills, or the exception: `with diagnose(...)`",
        "the memory over time: machinelearning_run's container_memory_utilization and host_memory_utilization",
        "the state OOMKilled of a container: --kubernetes",
    ),
    judge=_judge,
    thresholds=(
        Threshold(
            "memory that counts as used up",
            f"{AT_LIMIT_PERCENT:.0f} %",
            "samples are 10 s apart, so the last one before a kill is mostly below 100 %",
        ),
        Threshold("age of the last sample, at most", f"{RECENT_SECONDS:.0f} s", "six samples"),
        Threshold("growth, at least", f"{LEAST_GROWTH_PERCENT:.0f} %", "less is the noise of a sample"),
        Threshold("time over which the growth is measured", f"{WINDOW_SECONDS:.0f} s", "long enough for slow leaks"),
    ),
    example="host tpu-17 ran out of host memory at step 41,207 (16:02:11 UTC); it grew by 410 MB/min, its limit is "
    "512 GiB; the 63 others failed 0.1 to 104 s later because of it",
    replaces=("C7", "K1", "K1s", "K2", "U0"),
)
