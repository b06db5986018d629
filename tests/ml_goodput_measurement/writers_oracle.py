"""Which writer's entries count, once more, slow and obvious: the rules of docs/explanation/goodput.md.

Nothing is shared with the library. Every query checks every entry.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from .histories import Payload

SECOND = 10**9


@dataclass(eq=False)
class Process:
    """A recorder in a process, and what it wrote."""

    index: int
    name: str
    attempt: str = ""
    payloads: list[Payload] = field(default_factory=list)


@dataclass(eq=False)
class Part:
    """The records of a process from one job start to its next."""

    process: Process
    entries: list[tuple[int, Payload]]

    @property
    def start(self) -> int:
        return min(at for at, _ in self.entries)

    @property
    def last(self) -> int:
        return max(at for at, _ in self.entries)

    @property
    def first_step(self) -> tuple[float, int]:
        steps = [(at, entry["step_count"]) for at, entry in self.entries if "step_count" in entry]
        return min(steps, default=(math.inf, -1))

    @property
    def last_step(self) -> tuple[float, int]:
        steps = [(at, entry["step_count"]) for at, entry in self.entries if "step_count" in entry]
        return max(steps, default=(-math.inf, -1))

    @property
    def has_steps(self) -> bool:
        return self.first_step[1] >= 0

    @property
    def kinds(self) -> dict[str, list[int]]:
        moments: dict[str, list[int]] = {}
        for at, entry in self.entries:
            for kind in kinds_of(entry):
                moments.setdefault(kind, []).append(at)
        return moments

    def completes(self, other: Part) -> bool:
        mine, theirs = self.kinds, other.kinds
        common = mine.keys() & theirs.keys()
        if self.has_steps and other.has_steps and "job_start_time" in common:
            return False
        if is_side_process(self, other) or is_side_process(other, self):
            return False
        return all(max(mine[kind]) < min(theirs[kind]) or max(theirs[kind]) < min(mine[kind]) for kind in common)

    def rank(self) -> tuple[bool, int, int, str]:
        return not self.has_steps, self.process.index, self.start, self.process.name


def is_side_process(part: Part, job: Part) -> bool:
    starts_or_ends = any("job_start_time" in entry or is_job_end(entry) for _, entry in part.entries)
    trains = job.has_steps and any("job_start_time" in entry for _, entry in job.entries)
    lies_within = job.start <= part.start and part.last <= job.last
    return starts_or_ends and not part.has_steps and trains and lies_within


def is_job_end(entry: Payload) -> bool:
    return "job_end_time" in entry and "process_outcome" not in entry


def keeps_pace(part: Part, leader: Part) -> bool:
    if not (part.has_steps and leader.has_steps):
        return False
    (last_at, last), (at, number) = part.last_step, leader.last_step
    return abs(last - number) <= 1 and abs(last_at - at) <= 30 * SECOND + 2 * mean_step(part)


def mean_step(part: Part) -> float:
    (first_at, first), (last_at, last) = part.first_step, part.last_step
    return (last_at - first_at) // (last - first) if last > first else 0


def outlasts(part: Part, before: Part) -> bool:
    if not (part.has_steps and before.has_steps) or any(is_job_end(entry) for _, entry in before.entries):
        return False
    return part.last_step[1] > before.last_step[1] + 1 and part.last_step[0] > before.last + 60 * SECOND


def moment_of(entry: Payload) -> int:
    [seconds] = [value for key, value in entry.items() if key.endswith(("_time", "_ended", "_started", "_timestamp"))]
    return round(seconds * 1e6) * 1000


def kinds_of(entry: Payload) -> set[str]:
    """The kinds of events in an entry: the start of a data load may have the end of a step as well."""
    return {kind_of(entry), *(["step_ended"] if "step_end_count" in entry else [])}


def kind_of(entry: Payload) -> str:
    [key] = [key for key in entry if key.endswith(("_time", "_ended", "_started", "_timestamp"))]
    label = entry.get("elastic_wait_event_type", entry.get("custom_badput_event_type", "").upper())
    if key.startswith("job_"):
        return key
    return key.replace("_start_time", "").replace("_end_time", "") + label


def is_checkpoint(entry: Payload) -> bool:
    return "event_type" in entry


def parts_of(process: Process) -> list[Part]:
    entries = [(moment_of(entry), entry) for entry in process.payloads if not is_checkpoint(entry)]
    starts = sorted({at for at, entry in entries if "job_start_time" in entry})
    if not entries:
        return []
    has_step_before = bool(starts) and any(at < starts[0] and "step_count" in entry for at, entry in entries)
    if not starts or has_step_before:
        starts.insert(0, -1)
    else:
        starts[0] = -1
    borders = [*starts, 2**62]
    parts = [
        Part(process, [(at, entry) for at, entry in entries if first <= at < stop])
        for first, stop in itertools.pairwise(borders)
    ]
    return [part for part in parts if part.entries]


def entries_that_count(processes: list[Process]) -> list[Payload]:
    """The entries of the process that counts at each moment, and all checkpoints."""
    parts = [part for process in processes for part in parts_of(process)]
    parts.sort(key=lambda part: (part.start, part.process.index, part.process.name))
    attempts: list[list[Part]] = []
    for part in parts:
        if attempts and is_same_attempt(part, attempts[-1]):
            attempts[-1].append(part)
        else:
            attempts.append([part])
    counting, borders = [], []
    going_on: list[Part] = []
    for attempt in attempts:
        started_at = min(part.start for part in attempt)
        going_on = [part for part in going_on if not part.has_steps and part.last >= started_at]
        chosen = those_that_count(attempt, going_on)
        counting.append(chosen)
        borders.append(min(part.start for part in chosen if part in attempt))
        going_on += attempt
    found = [entry for process in processes for entry in process.payloads if is_checkpoint(entry)]
    for number, chosen in enumerate(counting):
        first: float = borders[number] if number else -1
        stop = borders[number + 1] if number + 1 < len(borders) else math.inf
        turns = turns_of(chosen, attempts[number])
        for turn, following in itertools.zip_longest(turns, turns[1:]):
            until = min(stop, turn[0].last + 1 + mean_step(following[0]) // 2) if following else stop
            for process in {id(part.process): part.process for part in turn}.values():
                others = [entry for entry in process.payloads if not is_checkpoint(entry)]
                found += [entry for entry in others if first <= moment_of(entry) < until]
            first = max(first, until)
    return found


def turns_of(chosen: list[Part], attempt: list[Part]) -> list[list[Part]]:
    """Return the parts that count, one after another: where one stops, the next one that continues counts."""
    turns = [chosen]
    for part in sorted(set(attempt) - {chosen[0]}, key=Part.rank):
        if outlasts(part, turns[-1][0]):
            turns.append([part, *(one for one in chosen[1:] if one is not part and one.completes(part))])
    return turns


def is_same_attempt(part: Part, attempt: list[Part]) -> bool:
    leader = min(attempt, key=Part.rank)
    mine, theirs = part.process, leader.process
    if leader.last < part.start or (mine.attempt and theirs.attempt and mine.attempt != theirs.attempt):
        return False
    started_before_steps = leader.has_steps and part.start <= leader.first_step[0]
    one_first_step = not part.has_steps or not leader.has_steps or part.first_step[1] == leader.first_step[1]
    started_together = one_first_step and part.start - min(one.start for one in attempt) <= 30 * SECOND
    leader_outlived_it = leader.last - part.last > max(60 * SECOND, part.last - part.start)
    overlap = min(leader.last, part.last) - part.start
    stays_behind = part.last - leader.last <= max(60 * SECOND, overlap)
    return (
        part.completes(leader)
        or keeps_pace(part, leader)
        or started_before_steps
        or started_together
        or leader_outlived_it
        or (mine.index > theirs.index and stays_behind)
    )


def those_that_count(attempt: list[Part], going_on: list[Part]) -> list[Part]:
    chosen = [min(attempt, key=Part.rank)]
    for part in sorted({*attempt, *going_on} - {chosen[0]}, key=Part.rank):
        if part.process.index == chosen[0].process.index and all(part.completes(one) for one in chosen):
            chosen.append(part)
    return chosen
