"""L4: the job compiles the same function repeatedly."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration, format_percent

from ml_diagnostics_console._facts.facts import CompileBatch, Facts, ProcessFacts
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import part_of
from ml_diagnostics_console._rules.wording import hosts_of, indices_of, named
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_MOST_COMPILES: Final = 5
_LEAST_SHARE: Final = 0.01
_SECOND_NS: Final = 1_000_000_000


class _Recompiled(NamedTuple):
    """A function that one process compiled too often."""

    process: ProcessFacts
    function: str
    times: int
    seconds: float
    share: float
    batches: tuple[CompileBatch, ...]


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    if not any(process.compiles for process in facts.processes):
        if any(process.summaries for process in facts.processes):
            return None  # The companion records compilations, and there was none.
        return NotChecked("L4", "no compile events: wrap the training in cloud_tpu_diagnostics.diagnose()")
    found = [each for process in facts.processes if (each := _recompiled(process)) is not None]
    if not found:
        return None
    worst = max(found, key=lambda each: each.seconds)
    same = [each.process for each in found if each.function == worst.function]
    subject = (
        f"all {len(same)} hosts recompile" if 1 < len(same) == len(facts.processes) else f"{named(same)} recompiles"
    )
    if 1 < len(same) < len(facts.processes):
        subject = f"{named(same)} recompile"
    return Verdict(
        rule="L4",
        verdict_class=VerdictClass.SLOW,
        sentence=f"{subject} {worst.function}: {worst.times} times after the first steps, "
        f"{format_duration(worst.seconds)} in all, {format_percent(100 * worst.share)} of the time",
        blame=Blame.USER,
        confidence=Confidence.LIKELY,
        part=part_of(facts),
        hosts=hosts_of(same),
        process_indices=indices_of(same),
        since_ns=worst.batches[0].time_ns,
        cost=Cost(worst.seconds, CostBasis.LOWER_BOUND, shows="in compilation after the first steps"),
        evidence=tuple(batch.ref for batch in (*worst.batches[:1], *worst.batches[-1:])),
        next=(
            NextCommand("", "pad the shapes of the batches to a few sizes: each new shape is compiled"),
            NextCommand("export JAX_EXPLAIN_CACHE_MISSES=1", "JAX then logs why each function is compiled again"),
        ),
    )


def _recompiled(process: ProcessFacts) -> _Recompiled | None:
    """Return the function that a process compiled most after its first steps, if that is too often."""
    later = _after_warm_up(process)
    counts = sum((Counter(batch.functions) for batch in later), Counter[str]())
    if not counts:
        return None
    function, times = counts.most_common(1)[0]
    if times <= _MOST_COMPILES:
        return None
    batches = tuple(batch for batch in later if batch.functions.get(function))
    seconds = sum(batch.seconds * min(1.0, batch.functions[function] / max(1, batch.programs)) for batch in batches)
    started_ns = process.summaries[0].time_ns if process.summaries else process.compiles[0].time_ns
    elapsed = max((max(process.last_event_ns, batches[-1].time_ns) - started_ns) / _SECOND_NS, seconds)
    share = seconds / elapsed if elapsed > 0 else 0.0
    return _Recompiled(process, function, times, seconds, share, batches) if share >= _LEAST_SHARE else None


def _after_warm_up(process: ProcessFacts) -> tuple[CompileBatch, ...]:
    """Return the compilations after the first summary of steps; without any, after the first compilations."""
    if not process.summaries:
        return process.compiles[1:]
    warm_ns = process.summaries[0].time_ns
    return tuple(batch for batch in process.compiles if batch.time_ns > warm_ns)


RULE = Rule(
    id="L4",
    title="the same function is compiled repeatedly",
    needs=("JAX's compile events: cloud_tpu_diagnostics.diagnose()",),
    judge=_judge,
    thresholds=(
        Threshold(
            "compilations of one function", _MOST_COMPILES, "more shapes than a last batch and an evaluation have"
        ),
        Threshold("warm-up", "the first summary of steps (10 s)", "the first steps compile what all later ones run"),
        Threshold("share of the time", _LEAST_SHARE, "less is not worth a change of the program"),
    ),
    example="all 8 hosts recompile train_step: 412 times after the first steps, 6 min 52 s in all, 93.0 % of the time",
)
