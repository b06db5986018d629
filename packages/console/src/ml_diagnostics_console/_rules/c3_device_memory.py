"""C3: the memory of an accelerator ran out, while a program was compiled or in a step."""

from __future__ import annotations

from typing import Final

from cloud_tpu_diagnostics.reading import is_compiler
from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import Cause, own_clock_ns, titles
from ml_diagnostics_console._rules.crashes import command, crash, error_of
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console.verdict import Blame

__all__ = ["RULE"]

_METRICS: Final = ("hbm_utilization", "vram_utilization")
_TEXTS_OF_COMPILER: Final = ("while compiling", "memory space hbm", "Compile-time", "exceeded hbm capacity")
"""XLA's compiler for TPUs reports a program that does not fit with these."""


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a process that ran out of device memory."""
    lead = lead_of(facts)
    if lead is None or lead.cause is not Cause.DEVICE_MEMORY:
        return None
    process = lead.process
    compiling = _is_compiling(process)
    what = "ran out of device memory while it compiled a program" if compiling else "ran out of device memory"
    fullest = _fullest(facts, process)
    refs = () if fullest is None else (fullest.ref("last"),)
    use = "" if fullest is None else f"; {fullest.last:.0f} % of a chip's memory were in use before"
    metric = _METRICS[0] if fullest is None else fullest.key.name
    commands = [
        command(facts, "mldiagnostics profile RUN", "see in the memory view what fills it"),
        command(facts, f"mldiagnostics metrics RUN {metric} --plot", "see if it grew, or was full from the start"),
    ]
    return crash(
        facts,
        lead,
        "C3",
        what,
        after=f": {error_of(process)}{use}",
        blame=Blame.USER,
        confidence=Confidence.PROVEN,
        refs=(*process.end_refs[:1], *refs),
        commands=commands,
    )


def _is_compiling(process: ProcessFacts) -> bool:
    if any(is_compiler(frame.function) for raised in process.exception for frame in raised.frames):
        return True
    return any(text.lower() in title.lower() for title in titles(process) for text in _TEXTS_OF_COMPILER)


def _fullest(facts: Facts, process: ProcessFacts) -> Curve | None:
    """Return the memory of the fullest chip of the host in its last samples; None if that is not recorded."""
    ended_ns = process.end.ended_ns
    end_ns = process.last_event_ns if ended_ns is None else own_clock_ns(facts, process, ended_ns)
    curves = [
        curve
        for metric in _METRICS
        for curve in facts.metrics.of(metric, host=process.host)
        if len(curve) and process.started_ns <= curve.last_ns <= end_ns + 1_000_000_000
    ]
    return max(curves, key=lambda curve: curve.last, default=None)


RULE = Rule(
    id="C3",
    title="an accelerator ran out of memory",
    needs=(
        "the exception: `with diagnose(...)` or machinelearning_run",
        "the memory of chips over time: machinelearning_run's hbm_utilization and vram_utilization",
    ),
    judge=_judge,
    example="host host-0 ran out of device memory while it compiled a program at step 0 (16:02:11 UTC): "
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm",
    replaces=("C1", "U0"),
)
