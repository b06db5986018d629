"""L7: saving takes a large part of the time."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_count, format_duration, format_percent

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._facts.summaries import with_pauses
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import SUMMARIES, part_of
from ml_diagnostics_console._rules.wording import hosts_of, indices_of
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Ref,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_LEAST_SHARE: Final = 0.20
_LEAST_SAVES: Final = 3
_CHECKPOINT: Final = "checkpoint"


class _Saves(NamedTuple):
    """The saves of one process between its steps."""

    process: ProcessFacts
    saves: int
    seconds: float
    """Without the longest one, which may be an accident of the storage."""
    longest: float
    share: float
    """The share of these seconds in the time of saves and steps."""
    ref: Ref


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    if not any(process.summaries for process in facts.processes):
        return NotChecked("L7", SUMMARIES)
    found = sorted(filter(None, map(_saves, facts.processes)), key=lambda saves: saves.share)
    if not found:
        return None
    middle = found[(len(found) - 1) // 2]
    if middle.share < _LEAST_SHARE or middle.saves < _LEAST_SAVES:
        return None
    return _verdict(facts, middle, is_median=len(found) > 1)


def _verdict(facts: Facts, middle: _Saves, *, is_median: bool) -> Verdict:
    each = middle.seconds / (middle.saves - 1)
    # Young, 1974: with a save of d seconds each T, a share of d / T is the best if a job fails each T^2 / (2 d).
    interval = each / middle.share
    until_failure = format_duration(interval**2 / (2 * each))
    where = f"on {middle.process.name}" + (", the median host" if is_median else "")
    saves = f"{format_count(middle.saves, 'save')} of {format_duration(each)}"
    better = f"save each {format_duration(math.ceil(4 * interval))} instead of each {format_duration(interval)}"
    return Verdict(
        rule="L7",
        verdict_class=VerdictClass.SLOW,
        sentence=f"saves take {format_percent(100 * middle.share)} of the time between steps {where}: {saves}, the "
        f"longest {format_duration(middle.longest)}; so many are right only for a job that fails every {until_failure}",
        blame=Blame.USER,
        confidence=Confidence.LIKELY,
        part=part_of(facts),
        hosts=hosts_of(facts.processes),
        process_indices=indices_of(facts.processes),
        cost=Cost(middle.seconds, CostBasis.LOWER_BOUND, shows="in saves that the steps waited for"),
        evidence=(middle.ref,),
        next=(
            NextCommand("", "save asynchronously, so that steps go on meanwhile; or to a faster storage"),
            NextCommand("", better),
        ),
    )


def _saves(process: ProcessFacts) -> _Saves | None:
    pauses = [
        (pause, summary)
        for summary in with_pauses(process.summaries)
        for pause in summary.pauses
        if pause.phase == _CHECKPOINT
    ]
    wall = sum(summary.wall.sum for summary in process.summaries) if pauses else 0.0
    if wall <= 0:
        return None
    longest, summary = max(pauses, key=lambda pair: pair[0].max)
    saves, total = sum(pause.times for pause, _ in pauses), sum(pause.sum for pause, _ in pauses)
    seconds = max(0.0, total - longest.max)
    shows = (
        f"{process.name}: {format_count(saves, 'save')} in {format_duration(total)}, steps in {format_duration(wall)}"
    )
    return _Saves(process, saves, seconds, longest.max, seconds / (wall + seconds), summary.ref._replace(shows=shows))


RULE = Rule(
    id="L7",
    title="saving takes a large part of the time",
    needs=('step summaries with saves: heartbeat(phase="checkpoint") or record_checkpoint_progress() before a save',),
    judge=_judge,
    thresholds=(
        Threshold(
            "share of the time", _LEAST_SHARE, "Young, 1974: right for a job that fails every 12 durations of a save"
        ),
        Threshold("saves", _LEAST_SAVES, "with the longest, which does not count"),
    ),
    example="saves take 54.0 % of the time between steps on host-0, the median host: 12 saves of 1.20 s, the longest "
    "1.31 s; so many are right only for a job that fails every 2.06 s",
)
