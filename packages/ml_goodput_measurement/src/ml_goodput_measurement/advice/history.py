"""The saves, failures and restarts in a job's ledger: the input of all advice. Pure."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement.advice.posterior import FailureRate
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption

__all__ = ["JobHistory", "Life", "history_of"]

_SECOND = 1e9
_APART_NS = 60 * 10**9
"""Hosts save one step at about the same time."""
_FEWEST_STEPS = 10
"""The mean time of fewer steps shows little."""
_USUAL_NOISE = 0.02
"""How much the mean step time usually differs between attempts; it counts as much as two attempts."""
_USUAL_NOISE_WEIGHT = 2
_EARLY = 0.9
"""A last save after less than this share of the interval was made because the job was about to end."""


@dataclass(frozen=True, slots=True)
class Life:
    """The training of one attempt, from its first step on.

    Attributes:
        uptime_seconds: How long it trained and saved, without the additional time of its first step.
        restart_seconds: The time from its last record until the next attempt trained; None for the last attempt.
        failed: True if a failure ended it.
        kept_all: True if it saved right before it ended, so that nothing was lost.
        is_save_due: True if a save was due after its last step, and is not recorded.
    """

    uptime_seconds: float
    restart_seconds: float | None
    failed: bool = True
    kept_all: bool = False
    is_save_due: bool = False


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A job so far. Durations are in seconds.

    Attributes:
        goodput_percent: Its goodput.
        wall_seconds: Its wall time.
        steps: The number of steps that were kept.
        step_seconds: The mean productive time of a step.
        other_seconds: The mean time beside it that each step takes, such as data loading and evaluations.
        step_noise: The relative standard deviation of the mean step time of attempts.
        start_seconds: The time from the job's start to its first training.
        lives: The attempts with steps, in order.
        failures: The number of failures.
        uptime_seconds: The time in which it could fail, from the first step of each attempt to its end.
        saves: The number of saves that were recorded.
        save_seconds: How long a save blocks, in the mean; None if no save was recorded.
        interval_steps: The steps between two saves; None if there were not two.
        background_seconds: How long asynchronous saves go on in the background; None if it is not known.
    """

    goodput_percent: float
    wall_seconds: float
    steps: int
    step_seconds: float
    other_seconds: float
    step_noise: float
    start_seconds: float
    lives: Sequence[Life]
    failures: int
    uptime_seconds: float
    saves: int
    save_seconds: float | None
    interval_steps: int | None
    background_seconds: float | None = None

    @property
    def period_seconds(self) -> float:
        """The wall time of a step."""
        return self.step_seconds + self.other_seconds

    @property
    def productive_share(self) -> float:
        """The productive share of the time of steps."""
        return self.step_seconds / self.period_seconds

    @property
    def failure_rate(self) -> FailureRate:
        """How often the job fails. The moments of two steps may be all of its uptime: it was up for a step at least."""
        return FailureRate(self.failures, max(self.uptime_seconds, self.period_seconds))

    @property
    def restarts(self) -> list[float]:
        """The restart times."""
        return [life.restart_seconds for life in self.lives if life.restart_seconds is not None]

    @property
    def restart_seconds(self) -> float:
        """The mean restart time after failures; 0.0 without a restart.

        It is the time that a job did not train, recorded or not: the cost of disruptions has no time that is unknown.
        """
        after_failures = [
            life.restart_seconds for life in self.lives if life.failed and life.restart_seconds is not None
        ]
        return statistics.fmean(after_failures or self.restarts or [0.0])


@dataclass(frozen=True, slots=True)
class _Save:
    start_ns: int
    duration_ns: int
    step: int


def history_of(ledger: Ledger, now_ns: int) -> JobHistory | None:
    """Return the history of a job; None if no step was kept.

    Args:
        ledger: The job's ledger.
        now_ns: The moment of the query, or `PROCESS_GONE`.
    """
    summary = ledger.summary(now_ns)
    if summary is None or not summary.steps_kept or not summary.buckets[Bucket.PRODUCTIVE]:
        return None
    attempts = ledger.attempts(now_ns)
    disruptions = ledger.disruptions(attempts)
    starts = _first_steps_ns(ledger, attempts)
    stepping = [attempt for attempt in attempts if attempt.number in starts]
    saves = _saves(ledger)
    interval = _interval_steps(ledger, saves, attempts)
    trained_ns = [starts[attempt.number] + _startup_ns(attempt) for attempt in stepping]
    if stepping[-1] is not attempts[-1]:
        trained_ns.append(summary.end_ns)  # It is starting now.
    lives = [
        _life(attempt, first_ns, next_ns, saves, interval, disruptions)
        for attempt, first_ns, next_ns in zip_longest(stepping, trained_ns[: len(stepping)], trained_ns[1:])
    ]
    if len(trained_ns) > len(stepping):
        lives.append(Life(0.0, None, failed=False))
    failed = [disruption for disruption in disruptions if not _is_planned(attempts[disruption.attempt - 1])]
    step_seconds = summary.buckets[Bucket.PRODUCTIVE] / summary.steps_kept / _SECOND
    made = sum(_steps_made(attempt) for attempt in stepping)
    spent = sum(_work_ns(attempt) + attempt.buckets.get(Bucket.CHECKPOINT_SAVE, 0) for attempt in stepping)
    trained = sum(life.uptime_seconds for life in lives)
    first = stepping[0]
    return JobHistory(
        goodput_percent=summary.goodput_percent,
        wall_seconds=summary.wall_ns / _SECOND,
        steps=summary.steps_kept,
        step_seconds=step_seconds,
        other_seconds=max(0.0, trained - spent / _SECOND) / made,
        step_noise=_step_noise(stepping, step_seconds),
        start_seconds=(starts[first.number] - summary.start_ns + _startup_ns(first)) / _SECOND,
        lives=lives,
        failures=len(failed),
        uptime_seconds=sum(max(0, attempt.end_ns - starts[attempt.number]) for attempt in stepping) / _SECOND,
        saves=len(saves),
        save_seconds=statistics.fmean(save.duration_ns for save in saves) / _SECOND if saves else None,
        interval_steps=interval,
    )


def _first_steps_ns(ledger: Ledger, attempts: Iterable[AttemptSummary]) -> dict[int, int]:
    """Return when the first step of each attempt with steps started, by the attempt's number."""
    times = ledger.facts.steps.times
    return {
        attempt.number: times[bisect_left(times, attempt.start_ns)]
        for attempt in attempts
        if attempt.first_step is not None
    }


def _life(
    attempt: AttemptSummary,
    first_ns: int,
    next_ns: int | None,
    saves: Sequence[_Save],
    interval: int | None,
    disruptions: Iterable[Disruption],
) -> Life:
    """Return the training of an attempt.

    Args:
        attempt: The attempt.
        first_ns: When it trained first.
        next_ns: When the next attempt trained first; None for the last attempt.
        saves: All saves.
        interval: The usual number of steps between two saves.
        disruptions: The job's disruptions.
    """
    uptime = max(0, attempt.end_ns - first_ns) / _SECOND
    if next_ns is None:
        return Life(uptime, None, failed=False)
    restart = max(0, next_ns - max(attempt.end_ns, first_ns)) / _SECOND
    lost = sum(one.steps_lost for one in disruptions if one.attempt == attempt.number)
    lasted = [save.step for save in saves if attempt.start_ns <= save.start_ns < attempt.end_ns]
    saved_early = interval is not None and len(lasted) > 1 and lasted[-1] - lasted[-2] < _EARLY * interval
    is_planned = _is_planned(attempt)
    since_save = _steps_made(attempt) if not lasted else (attempt.last_step or 0) - lasted[-1]
    return Life(
        uptime,
        restart,
        failed=not is_planned,
        kept_all=not lost and (is_planned or saved_early),
        is_save_due=interval is not None and since_save >= interval,
    )


def _is_planned(attempt: AttemptSummary) -> bool:
    """Return True if the job recorded the end of an attempt itself, and no exception."""
    return attempt.ended is AttemptEnd.JOB_END and not attempt.exception


def _startup_ns(attempt: AttemptSummary) -> int:
    return attempt.buckets.get(Bucket.PROGRAM_STARTUP, 0)


def _work_ns(attempt: AttemptSummary) -> int:
    buckets = attempt.buckets
    return sum(buckets.get(bucket, 0) for bucket in (Bucket.PRODUCTIVE, Bucket.WASTED_PROGRESS, Bucket.IN_FLIGHT))


def _steps_made(attempt: AttemptSummary) -> int:
    return attempt.steps_kept + attempt.steps_lost or 1


def _step_noise(attempts: Iterable[AttemptSummary], step_seconds: float) -> float:
    """Return how much the mean step time differs between attempts; few attempts count with what is usual."""
    long = [attempt for attempt in attempts if _steps_made(attempt) >= _FEWEST_STEPS]
    squares = [(_work_ns(attempt) / _SECOND / _steps_made(attempt) / step_seconds - 1) ** 2 for attempt in long]
    usual = _USUAL_NOISE_WEIGHT * _USUAL_NOISE**2
    return math.sqrt((sum(squares) + usual) / (max(0, len(squares) - 1) + _USUAL_NOISE_WEIGHT))


def _saves(ledger: Ledger) -> list[_Save]:
    """Return the saves to the storage that has most of them, in order; one for all hosts."""
    tiers: dict[str, list[_Save]] = {}
    for (bucket, step, tier), reports in ledger.facts.checkpoints.items():
        if bucket is Bucket.CHECKPOINT_SAVE:
            tiers.setdefault(tier, []).extend(
                _Save(group[0][0], sum(duration_ns for _, duration_ns in group) // len(group), step)
                for group in _operations(sorted(reports))
            )
    most = max(tiers.values(), key=len, default=[])
    return sorted(most, key=lambda save: save.start_ns)


def _operations(reports: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    groups: list[list[tuple[int, int]]] = []
    for report in reports:
        if not groups or report[0] - groups[-1][-1][0] > _APART_NS:
            groups.append([])
        groups[-1].append(report)
    return groups


def _interval_steps(ledger: Ledger, saves: Sequence[_Save], attempts: Sequence[AttemptSummary]) -> int | None:
    """Return the usual number of steps between two saves of one attempt."""
    moments = [(save.start_ns, save.step) for save in saves]
    if not moments:
        started = ledger.facts.checkpoint_progress
        moments = list(zip(started.times, started.numbers, strict=True))
    borders = [attempt.start_ns for attempt in attempts]
    gaps = Counter(
        step - previous
        for (previous_ns, previous), (time_ns, step) in pairwise(moments)
        if step > previous and bisect_right(borders, previous_ns) == bisect_right(borders, time_ns)
    )
    return statistics.median_low(sorted(gaps.elements())) if gaps else None
