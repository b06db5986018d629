"""The known facts of a job, in sorted columns: a set, so order, lateness and repetition of entries do not matter."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import Any

from ml_goodput_measurement._ledger.events import (
    Activity,
    CheckpointOperation,
    CheckpointProgress,
    Event,
    EventBatch,
    JobEnd,
    JobStart,
    Mark,
    ProcessEnd,
    SliceCount,
)
from ml_goodput_measurement._ledger.intervals import (
    MARKS_PART,
    Interval,
    Marks,
    Overlay,
    Overlays,
    SliceCounts,
    append_all,
)
from ml_goodput_measurement._record.process_outcome import ProcessOutcome
from ml_goodput_measurement.partition import Bucket

__all__ = ["NEVER_NS", "SIZES", "CheckpointKey", "Facts", "Sizes", "Steps", "rises"]

NEVER_NS = 2**62
"""Later than any time."""

_NEWEST_CHECKPOINTS = 8
"""Enough to find two different steps among them, with copies of a save on several storages."""

CheckpointKey = tuple[Bucket, int, str]
"""Kind of operation, step and tier."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a ledger: its speed depends on them, its results do not, so tests make them small."""

    unsettled_steps: int = 128
    """The number of the latest steps that each query counts again, since an overlay may still be added to them."""
    few_steps: int = 32
    """Fewer steps than this, some without a recorded end, are accounted for one by one."""
    marks_part: int = MARKS_PART
    step_times_block: int = 1000
    """The number of step times that are sorted together."""


SIZES = Sizes()


class Steps:
    """Times and numbers of step records, in order of time: two columns, 16 bytes a step."""

    def __init__(self) -> None:
        self.times = array("q")
        self.numbers = array("q")

    def __len__(self) -> int:
        return len(self.times)

    def extend(self, times: Sequence[int], numbers: Sequence[int], *, rising: bool = False) -> int:
        """Add records; return the time of the earliest new one, or `NEVER_NS`.

        Args:
            times: Their times.
            numbers: Their numbers.
            rising: True if the times are known to rise.
        """
        if not times:
            return NEVER_NS
        if (not self.times or times[0] > self.times[-1]) and (rising or rises(times)):
            append_all(self.times, times)
            append_all(self.numbers, numbers)
            return times[0]
        inserted = (time_ns for time_ns, number in zip(times, numbers, strict=True) if self.insert(time_ns, number))
        return min(inserted, default=NEVER_NS)

    def between(self, start_ns: int, end_ns: int) -> tuple[array[int], array[int]]:
        """Return the times and numbers of an interval of time, without its end."""
        first, stop = bisect_left(self.times, start_ns), bisect_left(self.times, end_ns)
        return self.times[first:stop], self.numbers[first:stop]

    def insert(self, time_ns: int, number: int) -> bool:
        """Insert a record in order; return False if it is known."""
        index = bisect_left(self.times, time_ns)
        while index < len(self.times) and self.times[index] == time_ns and self.numbers[index] < number:
            index += 1
        if index < len(self.times) and self.times[index] == time_ns and self.numbers[index] == number:
            return False
        self.times.insert(index, time_ns)
        self.numbers.insert(index, number)
        return True


class Facts:
    """The deduplicated facts of one job, and the earliest moment of new ones."""

    def __init__(self, sizes: Sizes = SIZES) -> None:
        self.sizes = sizes
        self.steps = Steps()
        self.step_ends = Steps()
        self.job_starts: list[int] = []
        self.job_ends: list[int] = []
        self.end_exceptions: dict[int, str] = {}
        """The type of the exception that was handled at each job end, if there was one."""
        self.process_ends: dict[int, ProcessEnd] = {}
        """Ends of processes that had not recorded the job's end, by the job start that they had recorded last."""
        self._process_end_starts: list[int] = []
        self.slices = SliceCounts()
        self.checkpoint_progress = Steps()
        """When checkpoints of steps started."""
        self.saved_steps = Steps()
        """When checkpoints of steps were saved, from `checkpoints`."""
        self.loads = Marks(sizes.marks_part)
        """Data loads."""
        self.marks: dict[Activity, Marks] = {}
        self.overlays = Overlays()
        """All overlays but the synchronous data loads; `CheckpointOverlays` adds those of checkpoints."""
        self.checkpoints: dict[CheckpointKey, set[tuple[int, int]]] = {}
        """(start, duration) as each host reported it, by operation, step and tier."""
        self.changed_from_ns = NEVER_NS
        """Nothing before this moment has changed since the owner last set it to `NEVER_NS`."""
        self.attempts_changed_from_ns = NEVER_NS
        """The same for steps, job starts and job ends, which determine the attempts."""
        self.changed_checkpoints: set[CheckpointKey] = set()
        """The operations reported since the owner last emptied it."""
        self._checkpoint_starts: list[int] = []
        self._checkpoint_ends: list[int] = []

    def add(self, batch: EventBatch) -> None:
        """Add events, in any order; known ones change nothing."""
        changed_ns = min((self._add_other(event) for event in batch.others), default=NEVER_NS)
        changed_ns = min([changed_ns, *map(self._add_checkpoint, batch.checkpoints)])
        stepped_ns = self.steps.extend(batch.step_times, batch.step_numbers, rising=batch.rises)
        self.attempts_changed_from_ns = min(self.attempts_changed_from_ns, stepped_ns)
        ended_ns = self.step_ends.extend(batch.step_end_times, batch.step_end_numbers, rising=batch.rises)
        loaded_ns = self._add_loads(batch.load_marks, rising=batch.rises)
        changed_ns = min(changed_ns, stepped_ns, ended_ns, loaded_ns)
        self.changed_from_ns = min(self.changed_from_ns, changed_ns)

    def _add_loads(self, codes: Sequence[int], *, rising: bool) -> int:
        if not codes:
            return NEVER_NS
        known = self.loads.codes
        if (not known or codes[0] > known[-1]) and (rising or rises(codes)):
            started_ns = (known[-1] if known else codes[0]) >> 1
            self.loads.extend(codes)
            return started_ns
        return min(_earliest(code >> 1, *self.loads.add_code(code)) for code in codes)

    def _add_other(self, event: Event) -> int:
        match event:
            case Mark():
                return self._add_mark(event)
            case JobStart(time_ns):
                return self._add_border(self.job_starts, time_ns)
            case JobEnd(time_ns, exception):
                if exception:  # Of two at one moment the same counts in whichever order they arrive.
                    self.end_exceptions[time_ns] = max(exception, self.end_exceptions.get(time_ns, ""))
                return self._add_border(self.job_ends, time_ns)
            case ProcessEnd():
                return self._add_process_end(event)
            case CheckpointProgress(step, time_ns):
                return time_ns if self.checkpoint_progress.insert(time_ns, step) else NEVER_NS
            case SliceCount(time_ns):
                return time_ns if self.slices.add(event) else NEVER_NS

    def _add_border(self, column: list[int], time_ns: int) -> int:
        changed_ns = _insert(column, time_ns)
        self.attempts_changed_from_ns = min(self.attempts_changed_from_ns, changed_ns)
        return changed_ns

    def _add_process_end(self, end: ProcessEnd) -> int:
        known = self.process_ends.get(end.started_ns)
        if known is not None and known >= end:
            return NEVER_NS
        self.process_ends[end.started_ns] = end
        if known is None:
            insort(self._process_end_starts, end.started_ns)
        return end.started_ns

    def _add_mark(self, mark: Mark) -> int:
        marks = self.marks.setdefault(mark.activity, Marks(self.sizes.marks_part))
        broken, made = marks.add(mark.time_ns, is_end=mark.is_end)
        bucket, label = mark.activity
        if broken:
            self.overlays.discard(Overlay.of(*broken, bucket, label))
        for pair in made:
            self.overlays.add(Overlay.of(*pair, bucket, label))
        return _earliest(mark.time_ns, broken, made)

    def _add_checkpoint(self, operation: CheckpointOperation) -> int:
        key = (operation.bucket, operation.step, operation.tier)
        reports = self.checkpoints.setdefault(key, set())
        report = (operation.start_ns, operation.duration_ns)
        if report in reports:
            return NEVER_NS
        reports.add(report)
        insort(self._checkpoint_starts, operation.start_ns)
        insort(self._checkpoint_ends, operation.start_ns + operation.duration_ns)
        if operation.bucket is Bucket.CHECKPOINT_SAVE:
            self.saved_steps.insert(operation.start_ns + operation.duration_ns, operation.step)
        self.changed_checkpoints.add(key)
        return operation.start_ns

    def __len__(self) -> int:
        """The number of facts."""
        checkpoints = sum(map(len, self.checkpoints.values()))
        marks = sum(len(marks.codes) for marks in self.marks.values())
        rest = len(self.job_starts) + len(self.job_ends) + len(self.process_ends) + len(self.slices.counts)
        return sum(map(len, self.columns())) + checkpoints + marks + rest

    def columns(self) -> list[array[int]]:
        """Return the columns that grow with the steps."""
        steps, ends, started, saved = self.steps, self.step_ends, self.checkpoint_progress, self.saved_steps
        columns = [steps.times, steps.numbers, ends.times, ends.numbers, self.loads.codes]
        return [*columns, started.times, started.numbers, saved.times, saved.numbers]

    def to_state(self) -> dict[str, Any]:
        """Return everything but `columns()` as JSON."""
        return {
            "job_starts": self.job_starts,
            "job_ends": self.job_ends,
            "end_exceptions": list(self.end_exceptions.items()),
            "process_ends": list(self.process_ends.values()),
            "slices": self.slices.counts,
            "load_sums": self.loads.sums(),
            "marks": [[bucket.value, label, [*marks.codes]] for (bucket, label), marks in self.marks.items()],
            "checkpoints": [
                [bucket.value, step, tier, list(reports)] for (bucket, step, tier), reports in self.checkpoints.items()
            ],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], columns: list[array[int]], sizes: Sizes = SIZES) -> Facts:
        """Return the facts of a state from `to_state`, and of `columns`."""
        facts = cls(sizes)
        facts.steps.times, facts.steps.numbers, facts.step_ends.times, facts.step_ends.numbers = columns[:4]
        facts.loads = Marks.of_codes(columns[4], state["load_sums"], sizes.marks_part)
        facts.checkpoint_progress.times, facts.checkpoint_progress.numbers = columns[5:7]
        facts.saved_steps.times, facts.saved_steps.numbers = columns[7:9]
        facts.job_starts, facts.job_ends = state["job_starts"], state["job_ends"]
        facts.end_exceptions = dict(state["end_exceptions"])
        for time_ns, started_ns, outcome, exception in state["process_ends"]:
            facts._add_process_end(ProcessEnd(time_ns, started_ns, ProcessOutcome(outcome), exception))
        facts.slices = SliceCounts([SliceCount(*count) for count in state["slices"]])
        overlays = []
        for name, label, codes in state["marks"]:
            bucket = Bucket(name)
            marks = facts.marks[bucket, label] = Marks(sizes.marks_part)
            marks.extend(codes)
            overlays += [Overlay.of(*pair, bucket, label) for pair in marks.pairs()]
        facts.overlays.extend(overlays)
        buckets = {bucket.value: bucket for bucket in (Bucket.CHECKPOINT_SAVE, Bucket.CHECKPOINT_RESTORE)}
        for name, step, tier, reports in state["checkpoints"]:
            facts.checkpoints[buckets[name], step, tier] = {
                (start_ns, duration_ns) for start_ns, duration_ns in reports
            }
            facts._checkpoint_starts += [start_ns for start_ns, _ in reports]
            facts._checkpoint_ends += [start_ns + duration_ns for start_ns, duration_ns in reports]
        facts._checkpoint_starts.sort()
        facts._checkpoint_ends.sort()
        return facts

    def between(self, start_ns: int, end_ns: int) -> EventBatch:
        """Return the facts of an interval of time, without its end, and without checkpoint operations."""
        batch = EventBatch()
        batch.step_times, batch.step_numbers = self.steps.between(start_ns, end_ns)
        batch.step_end_times, batch.step_end_numbers = self.step_ends.between(start_ns, end_ns)
        batch.load_marks = self.loads.codes_between(start_ns, end_ns)
        batch.others = self._others_between(start_ns, end_ns)
        return batch

    def kinds_between(self, start_ns: int, end_ns: int) -> dict[str, tuple[int, int]]:
        """Return `between(...).kinds()`; the time does not grow with the steps."""
        kinds = EventBatch(others=self._others_between(start_ns, end_ns)).kinds()
        for kind, steps in (("step", self.steps), ("step_end", self.step_ends)):
            first, stop = bisect_left(steps.times, start_ns), bisect_left(steps.times, end_ns)
            if first < stop:
                kinds[kind] = steps.times[first], steps.times[stop - 1]
        codes = self.loads.codes
        first, stop = bisect_left(codes, start_ns << 1), bisect_left(codes, end_ns << 1)
        if first < stop:
            kinds["load"] = codes[first] >> 1, codes[stop - 1] >> 1
        return kinds

    def _others_between(self, start_ns: int, end_ns: int) -> list[Event]:
        others: list[Event] = []
        others += map(JobStart, _part(self.job_starts, start_ns, end_ns))
        ends = _part(self.job_ends, start_ns, end_ns)
        others += (JobEnd(time_ns, self.end_exceptions.get(time_ns, "")) for time_ns in ends)
        for activity, marks in self.marks.items():
            codes = marks.codes_between(start_ns, end_ns)
            others += [Mark(activity, not code & 1, code >> 1) for code in codes]
        times, numbers = self.checkpoint_progress.between(start_ns, end_ns)
        others += map(CheckpointProgress, numbers, times)
        first, stop = bisect_left(self.slices.times, start_ns), bisect_left(self.slices.times, end_ns)
        others += self.slices.counts[first:stop]
        others += map(self.process_ends.__getitem__, _part(self._process_end_starts, start_ns, end_ns))
        return others

    def checkpoint_operations(self) -> list[CheckpointOperation]:
        """Return the saves and restores that were added."""
        return [
            CheckpointOperation(bucket, step, tier, start_ns, duration_ns)
            for (bucket, step, tier), reports in self.checkpoints.items()
            for start_ns, duration_ns in reports
        ]

    def last_checkpoint_steps(self, before_ns: int) -> tuple[int | None, int | None]:
        """Return the steps of the last checkpoint before a moment and of the one before it; None without them."""
        latest: list[tuple[int, int]] = []
        for column in (self.checkpoint_progress, self.saved_steps):
            index = bisect_left(column.times, before_ns)
            start = max(0, index - _NEWEST_CHECKPOINTS)
            latest += zip(column.times[start:index], column.numbers[start:index], strict=True)
        # A save may be in both columns: when it started, and when it ended.
        steps = list(dict.fromkeys(step for _, step in sorted(latest, reverse=True)))
        return steps[0] if steps else None, steps[1] if len(steps) > 1 else None

    def recorded_span(self) -> tuple[int, int]:
        """Return the times of the first and the last fact but checkpoint operations; `NEVER_NS` and -1 for none."""
        columns: list[Sequence[int]] = [*self._time_columns()[:-2], self._process_end_starts]
        marked = [
            (marks.codes[0] >> 1, marks.codes[-1] >> 1) for marks in (self.loads, *self.marks.values()) if marks.codes
        ]
        ends = [*marked, *((column[0], column[-1]) for column in columns if column)]
        return min((first for first, _ in ends), default=NEVER_NS), max((last for _, last in ends), default=-1)

    def latest_border_ns(self) -> int:
        """Return the time of the last step, job start or job end, or -1."""
        return max(column[-1] if column else -1 for column in (self.steps.times, self.job_starts, self.job_ends))

    def earliest_ns(self) -> int:
        """Return the time of the first fact, or `NEVER_NS` when there is none."""
        return self._first_from(-1)

    def next_after(self, time_ns: int) -> int:
        """Return the time of the first fact after a moment, or `NEVER_NS`."""
        return self._first_from(time_ns)

    def _first_from(self, time_ns: int) -> int:
        first = NEVER_NS
        for column in self._time_columns():
            if not column or column[-1] <= time_ns:
                continue
            following_ns = column[bisect_right(column, time_ns)]
            if following_ns < first:
                first = following_ns
        for marks in (self.loads, *self.marks.values()):
            following = marks.next_after(time_ns)
            if following is not None:
                first = min(first, following)
        return first

    def last_before(self, time_ns: int) -> int:
        """Return the time of the last fact before a moment, or -1."""
        last = -1
        for column in self._time_columns():
            if not column or column[0] >= time_ns:
                continue
            preceding_ns = column[bisect_left(column, time_ns) - 1]
            if preceding_ns > last:
                last = preceding_ns
        for marks in (self.loads, *self.marks.values()):
            preceding = marks.last_before(time_ns)
            if preceding is not None:
                last = max(last, preceding)
        return last

    def _time_columns(self) -> tuple[list[int] | array[int], ...]:
        return (
            self.steps.times,
            self.step_ends.times,
            self.job_starts,
            self.job_ends,
            self.slices.times,
            self.checkpoint_progress.times,
            self._checkpoint_starts,
            self._checkpoint_ends,
        )


def _part(column: list[int], start_ns: int, end_ns: int) -> list[int]:
    return column[bisect_left(column, start_ns) : bisect_left(column, end_ns)]


def _insert(column: list[int], time_ns: int) -> int:
    index = bisect_left(column, time_ns)
    if index < len(column) and column[index] == time_ns:
        return NEVER_NS
    column.insert(index, time_ns)
    return time_ns


def _earliest(time_ns: int, broken: Interval | None, made: list[Interval]) -> int:
    starts = [start_ns for start_ns, _ in ([*made, broken] if broken else made)]
    return min([time_ns, *starts])


def rises(values: Sequence[int]) -> bool:
    """Return True if each value is greater than the one before."""
    return all(map(lt, values, islice(values, 1, None)))
