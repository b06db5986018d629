"""The contract's section 3.10 once more, slow and obvious: the expected ledger, to compare ours with.

Nothing is shared with the ledger and nothing is clever. All moments at which anything happened cut the wall time
into elementary intervals; each is painted by asking every claim on it, from the highest precedence down.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Payload = dict[str, Any]


class Step(NamedTuple):
    at: int
    number: int


class Interval(NamedTuple):
    first: int
    last: int
    label: str = ""

    def holds(self, moment: int) -> bool:
        return self.first <= moment < self.last


@dataclass
class Attempt:
    start: int
    has_start: bool
    """True if its job start was recorded."""
    steps: list[Step] = field(default_factory=list)
    next_start: int = 0
    cut: float = float("inf")
    """The first step that is repeated later, as are all after it."""
    decided: bool = False
    """True if the outcome of its last step is known."""
    last_step: Interval | None = None
    last_event: int = 0
    failed: bool = False
    """It made no step, and was the recovery of an attempt that had made some."""
    estimated: bool = False
    in_flight: bool = False
    """Its last step is still being made."""
    is_last: bool = False


@dataclass
class Truth:
    start: int
    end: int
    running: bool
    buckets: dict[str, int]
    custom: dict[str, int]
    data_loading_async: int
    last_step: int
    disruptions: int


PAIRS = {
    "elastic_reinit": "ELASTIC_REINITIALIZATION",
    "custom_badput_event": "CUSTOM_BADPUT_EVENTS",
    "tpu_init": "TPU_INITIALIZATION",
    "training_prep": "TRAINING_PREP",
    "data_loading": "DATA_LOADING_SYNC",
    "elastic_wait": "",
}

BEFORE_FAILURE = [
    "ELASTIC_SLICE_DOWN",
    "ELASTIC_SCALE_UP",
    "ELASTIC_REINITIALIZATION",
    "CUSTOM_BADPUT_EVENTS",
]
AFTER_FAILURE = [
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "TPU_INITIALIZATION",
    "TRAINING_PREP",
    "DATA_LOADING_SYNC",
]


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


class Facts:
    """The payloads, each once, sorted by kind."""

    def __init__(self, payloads: Iterable[Payload]) -> None:
        once = {json.dumps(payload, sort_keys=True): payload for payload in payloads}.values()
        self.job_starts = sorted({nanoseconds(p["job_start_time"]) for p in once if "job_start_time" in p})
        self.job_ends = sorted({nanoseconds(p["job_end_time"]) for p in once if "job_end_time" in p})
        self.steps = sorted(
            {Step(nanoseconds(p["step_start_time"]), p["step_count"]) for p in once if "step_start_time" in p}
        )
        self.step_ends = sorted(
            {
                Step(
                    nanoseconds(p["step_ended" if "step_ended" in p else "data_loading_start_time"]),
                    p["step_end_count"],
                )
                for p in once
                if "step_end_count" in p
            }
        )
        self.moments = [at for at, _ in self.steps + self.step_ends] + self.job_starts + self.job_ends
        self.overlays: dict[str, list[Interval]] = defaultdict(list)
        self.later_loads: list[Interval] = []
        """The data loads that are not the first of an attempt."""
        self.checkpoints: dict[tuple[str, int, bool], set[tuple[int, int]]] = defaultdict(set)
        self._pair_marks(once)
        self._read_checkpoints([p for p in once if "event_type" in p])
        self.moments.sort()

    def _pair_marks(self, payloads: Iterable[Payload]) -> None:
        marks: dict[tuple[str, str], set[tuple[int, bool]]] = defaultdict(set)
        for payload in payloads:
            for stem in PAIRS:
                label = payload.get("elastic_wait_event_type", payload.get("custom_badput_event_type", "").upper())
                for suffix, is_start in (("start_time", True), ("end_time", False)):
                    if f"{stem}_{suffix}" in payload:
                        at = nanoseconds(payload[f"{stem}_{suffix}"])
                        marks[stem, label].add((at, is_start))
                        self.moments.append(at)
        for (stem, label), found in marks.items():
            in_order = sorted(found)
            for (first, is_start), (last, is_next_start) in itertools.pairwise(in_order):
                if is_start and not is_next_start:
                    bucket = PAIRS[stem] or (
                        "ELASTIC_SCALE_UP" if "scale_up" in label.lower() else "ELASTIC_SLICE_DOWN"
                    )
                    self.overlays[bucket].append(Interval(first, last, label))

    def _read_checkpoints(self, payloads: Iterable[Payload]) -> None:
        for p in payloads:
            is_save = p["event_type"] == "save"
            stem = "checkpoint_manager_blocking" if is_save else "checkpoint_manager"
            bucket = f"UNPRODUCTIVE_CHECKPOINT_{'SAVE' if is_save else 'RESTORE'}_TIME"
            at, length = nanoseconds(p[f"{stem}_start_time"]), nanoseconds(p[f"{stem}_duration_secs"])
            self.checkpoints[bucket, p["step"], p["directory"].startswith("gs://")].add((at, length))
            self.moments += [at, at + length]

    def merge_hosts(self, attempts: list[Attempt]) -> None:
        """Several hosts report one save of an attempt: it starts with the first and has their mean length.

        Hosts are at it at about the same time: what is more than a minute later is another save.
        """
        for (bucket, *_), reports in self.checkpoints.items():
            groups: list[list[tuple[int, int]]] = []
            for at, length in sorted(reports):
                before = groups[-1][-1][0] if groups else 0
                started_at = [attempt for attempt in attempts if before < attempt.start <= at]
                if not groups or started_at or at - before > 60 * 10**9:
                    groups.append([])
                groups[-1].append((at, length))
            for hosts in groups:
                mean = sum(length for _, length in hosts) // len(hosts)
                self.overlays[bucket].append(Interval(hosts[0][0], hosts[0][0] + mean))


def judge(payloads: Iterable[Payload], now: int) -> Truth | None:
    """Return the account of a job's time, to the nanosecond; None if nothing was recorded."""
    facts = Facts(payloads)
    if not facts.moments:
        return None
    attempts = find_attempts(facts)
    facts.merge_hosts(attempts)
    last_life_sign = max([step.at for step in facts.steps] + facts.job_starts, default=0)
    running = not facts.job_ends or facts.job_ends[-1] < last_life_sign
    end = max(now, facts.moments[-1]) if running else facts.job_ends[-1]
    settle(facts, attempts, end, running=running)

    first_loads = find_first_loads(facts, attempts)
    all_loads = facts.overlays["DATA_LOADING_SYNC"]
    facts.overlays["DATA_LOADING_SYNC"] = first_loads
    facts.later_loads = [load for load in all_loads if load not in first_loads]

    buckets, custom, awaited = paint(facts, attempts, end)
    data_loading_async = sum(load.last - load.first for load in facts.later_loads) - awaited
    done = [
        step.number
        for attempt in attempts
        for step in attempt.steps
        if step.number < attempt.cut and (step != attempt.steps[-1] or attempt.decided or not attempt.estimated)
    ]
    stepping = [attempt for attempt in attempts if attempt.steps]
    resumed = len(stepping) - 1 + (not attempts[-1].steps)
    return Truth(
        start=attempts[0].start,
        end=end,
        running=running,
        buckets=buckets,
        custom=custom,
        data_loading_async=data_loading_async,
        last_step=max(done, default=0),
        disruptions=resumed if stepping else 0,
    )


def find_attempts(facts: Facts) -> list[Attempt]:
    """An attempt starts at a job start, at a step that does not continue, and at a step after a job end."""
    events: list[tuple[int, str, Step | None]] = [(at, "1 job start", None) for at in facts.job_starts]
    events += [(step.at, "2 step", step) for step in facts.steps]
    events += [(at, "3 job end", None) for at in facts.job_ends]
    attempts: list[Attempt] = []
    ended = False
    if facts.steps and (not facts.job_starts or facts.steps[0].at < facts.job_starts[0]):
        attempts.append(Attempt(facts.moments[0], has_start=False))
    if not facts.steps and not facts.job_starts:
        attempts.append(Attempt(facts.moments[0], has_start=False))
    for at, kind, step in sorted(events):
        if kind == "3 job end":
            ended = bool(attempts and attempts[-1].steps)
        elif step is None:
            attempts.append(Attempt(at, has_start=True))
            ended = False
        else:
            before = attempts[-1].steps
            if ended or (before and step.number <= before[-1].number):
                attempts.append(Attempt(at, has_start=False))
                ended = False
            attempts[-1].steps.append(step)
    return attempts


def settle(facts: Facts, attempts: list[Attempt], end: int, *, running: bool) -> None:
    """Find the steps that later attempts repeat, and the ends of each attempt and of its last step."""
    for index, attempt in enumerate(attempts):
        later = attempts[index + 1 :]
        attempt.is_last = not later
        attempt.next_start = later[0].start if later else end
        attempt.cut = min((other.steps[0].number for other in later if other.steps), default=float("inf"))
        stepped_before = any(other.steps for other in attempts[:index])
        attempt.failed = not attempt.steps and bool(later) and stepped_before
        moments = [at for at in facts.moments if at < attempt.next_start]
        attempt.last_event = max(moments, default=attempt.start)
    kept_times = [time for attempt in attempts for number, time in step_times(attempt) if number < attempt.cut]
    for index, attempt in enumerate(attempts):
        if not attempt.steps:
            continue
        final = attempt.steps[-1]
        ended = [at for at in facts.job_ends if final.at <= at <= attempt.next_start]
        attempt.decided = bool(ended) or any(other.steps for other in attempts[index + 1 :])
        recorded = recorded_end(facts, final, attempt.next_start)
        attempt.estimated = recorded is None
        attempt.in_flight = attempt.estimated and not attempt.decided and attempt.is_last and running
        if recorded is not None:
            finished = recorded
        elif attempt.in_flight:
            finished = end
        else:
            times = [time for _, time in step_times(attempt)] or kept_times
            next_event = min([at for at in facts.moments if at > final.at], default=end)
            finished = min(attempt.next_start, next_event)
            if times:
                finished = min(finished, final.at + int(statistics.median(times)))
        attempt.last_step = Interval(final.at, finished)


def step_times(attempt: Attempt) -> list[tuple[int, int]]:
    """Number and length of the steps that the next number follows."""
    return [
        (step.number, following.at - step.at)
        for step, following in zip(attempt.steps, attempt.steps[1:], strict=False)
        if following.number == step.number + 1
    ]


def recorded_end(facts: Facts, step: Step, before: int) -> int | None:
    ends = [at for at, number in facts.step_ends if number == step.number and step.at < at <= before]
    return min(ends, default=None)


def find_first_loads(facts: Facts, attempts: list[Attempt]) -> list[Interval]:
    """The load for which an attempt's training had to wait: the first, if it was completed in that attempt."""
    first_loads = []
    for attempt in attempts:
        before = float("inf") if attempt.is_last else attempt.next_start
        started_at = [load for load in facts.overlays["DATA_LOADING_SYNC"] if attempt.start <= load.first < before]
        if started_at and started_at[0].last <= before:
            first_loads.append(started_at[0])
    return first_loads


def paint(facts: Facts, attempts: list[Attempt], end: int) -> tuple[dict[str, int], dict[str, int], int]:
    """Return the buckets, the custom events, and the time of later loads that the training waited for."""
    buckets: dict[str, int] = defaultdict(int)
    custom: dict[str, int] = defaultdict(int)
    awaited = 0
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        base, steps = base_of(facts, attempt, following)
        borders = {attempt.start, attempt.next_start, attempt.last_event}
        borders |= set(facts.moments)
        borders |= {moment for intervals in facts.overlays.values() for one in intervals for moment in one[:2]}
        if attempt.last_step is not None:
            borders.add(attempt.last_step.last)
        cuts = sorted(moment for moment in borders if attempt.start <= moment <= attempt.next_start)
        net: dict[Step, int] = defaultdict(int)
        for first, last in itertools.pairwise(cuts):
            bucket, label = claim(facts, attempt, first, base)
            buckets[bucket] += last - first
            if bucket != "WASTED_PROGRESS_FROM_DISRUPTION" and base(first) == "DATA_LOADING_SYNC":
                awaited += last - first
            if bucket == "CUSTOM_BADPUT_EVENTS":
                custom[label] += last - first
            step = next((step for step, interval in steps.items() if interval.holds(first)), None)
            if bucket == "PRODUCTIVE" and step is not None:
                net[step] += last - first
        if attempt.steps and attempt.steps[0] in steps:
            first_net = net.pop(attempt.steps[0], 0)
            others = len(steps) - 1
            if others:
                startup = max(0, first_net - sum(net[step] for step in steps if step in net) // others)
                buckets["PRODUCTIVE"] -= startup
                buckets["PROGRAM_STARTUP"] += startup
    return {name: length for name, length in buckets.items() if length}, dict(custom), awaited


def base_of(
    facts: Facts, attempt: Attempt, following: Attempt | None
) -> tuple[Callable[[int], str], dict[Step, Interval]]:
    """Return the bucket of each moment of an attempt without overlays, and the kept steps of known length."""
    between_steps = find_times_between(facts, attempt)
    known: dict[Step, Interval] = {}
    for step, successor in zip(attempt.steps, attempt.steps[1:], strict=False):
        finished = recorded_end(facts, step, successor.at)
        if finished is None and successor.number == step.number + 1:
            finished = successor.at
        if finished is not None and step.number < attempt.cut:
            known[step] = Interval(step.at, finished)
    final = attempt.steps[-1] if attempt.steps else None
    kept = final is not None and final.number < attempt.cut
    if final is not None and attempt.last_step is not None and kept and not attempt.estimated:
        known[final] = attempt.last_step

    def base(moment: int) -> str:
        if any(step.holds(moment) for step in known.values()):
            return "PRODUCTIVE"
        if attempt.last_step is not None and attempt.last_step.holds(moment):
            return "PRODUCTIVE" if attempt.decided else "IN_FLIGHT_STEP"
        over = max(attempt.last_event, attempt.last_step.last if attempt.last_step is not None else attempt.start)
        if following is not None and following.has_start and moment >= over:
            return "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
        if any(time.holds(moment) for time in between_steps) and any(load.holds(moment) for load in facts.later_loads):
            return "DATA_LOADING_SYNC"
        return "UNKNOWN"

    return base, known


def find_times_between(facts: Facts, attempt: Attempt) -> list[Interval]:
    """Return the times from the recorded end of each step to the next step, or to the end of the attempt."""
    limits = [*(step.at for step in attempt.steps[1:]), attempt.next_start]
    ends = [recorded_end(facts, step, limit) for step, limit in zip(attempt.steps, limits, strict=False)]
    return [Interval(end, limit) for end, limit in zip(ends, limits, strict=False) if end is not None]


def claim(facts: Facts, attempt: Attempt, moment: int, base: Callable[[int], str]) -> tuple[str, str]:
    """The bucket of a moment: wasted work, then its overlays, then its step."""
    repeated = [step for step in attempt.steps if step.number >= attempt.cut]
    if repeated and attempt.last_step is not None and repeated[0].at <= moment < attempt.last_step.last:
        return "WASTED_PROGRESS_FROM_DISRUPTION", ""
    for buckets in (BEFORE_FAILURE, AFTER_FAILURE):
        for bucket in buckets:
            over = sorted(interval for interval in facts.overlays[bucket] if interval.holds(moment))
            if over:
                return bucket, over[0].label
        if attempt.failed:
            return "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", ""
    return base(moment), ""
