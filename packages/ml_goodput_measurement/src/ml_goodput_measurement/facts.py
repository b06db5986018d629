"""What is known of a job, in sorted columns: a set, so that order, lateness and repetition of entries do not matter."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable

from ml_goodput_measurement.events import (
    DATA_LOADING,
    Activity,
    CheckpointOperation,
    EntriesLost,
    Event,
    JobEnd,
    JobStart,
    Mark,
    Moment,
    StepEnd,
    StepStart,
)
from ml_goodput_measurement.marks import Marks
from ml_goodput_measurement.overlays import Overlay, Overlays
from ml_goodput_measurement.partition import Bucket

__all__ = ["NEVER_NS", "Facts", "Steps"]

NEVER_NS = 2**62
"""Later than any time."""


class Steps:
    """Times and numbers of step records, in order of time: two columns, 16 bytes a step."""

    def __init__(self) -> None:
        self.times = array("q")
        self.numbers = array("q")

    def __len__(self) -> int:
        return len(self.times)

    def insert(self, time_ns: int, number: int) -> bool:
        """Adds a record wherever it belongs; returns False when it is there already."""
        index = bisect_left(self.times, time_ns)
        while index < len(self.times) and self.times[index] == time_ns and self.numbers[index] < number:
            index += 1
        if index < len(self.times) and self.times[index] == time_ns and self.numbers[index] == number:
            return False
        self.times.insert(index, time_ns)
        self.numbers.insert(index, number)
        return True


class Facts:
    """The deduplicated facts of one job, and the earliest moment at which something new was learnt."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.step_ends = Steps()
        self.job_starts: list[int] = []
        self.job_ends: list[int] = []
        self.moments: list[int] = []
        self.marks: dict[Activity, Marks] = {DATA_LOADING: Marks()}
        self.overlays = Overlays()
        """All overlays but the synchronous data loads, which depend on the attempts."""
        self.checkpoints: dict[tuple[Bucket, int, str], set[tuple[int, int]]] = {}
        """(start, duration) as each host reported it, by operation, step and tier."""
        self.lost: Counter[str] = Counter()
        self.changed_from_ns = NEVER_NS
        """Nothing before this moment has changed since the owner last set it to `NEVER_NS`."""
        self.reordered_from_ns = NEVER_NS
        """The same for what makes the attempts (steps, job starts and ends) where it came late."""
        self._checkpoint_overlays: dict[tuple[Bucket, int, str], list[Overlay]] = {}
        self._checkpoint_starts: list[int] = []
        self._checkpoint_ends: list[int] = []

    def add(self, events: Iterable[Event]) -> None:
        """Adds events, in any order; what is known already changes nothing."""
        # The two kinds that come with every step are handled here, without a call, as long as they come in order.
        steps, loads = self.steps, self.marks[DATA_LOADING]
        append_time, append_number, append_load = steps.times.append, steps.numbers.append, loads.codes.append
        last_step = steps.times[-1] if steps.times else -1
        last_load = loads.codes[-1] if loads.codes else -1
        changed = self.changed_from_ns
        for event in events:
            if event.__class__ is StepStart:
                time_ns = event.time_ns
                if time_ns > last_step:
                    append_time(time_ns)
                    append_number(event.step)
                    last_step = time_ns
                elif not self._insert_step(event):
                    continue
            elif event.__class__ is Mark and event.activity == DATA_LOADING:
                time_ns = event.time_ns
                code = 2 * time_ns + (not event.is_end)
                if code > last_load:
                    append_load(code)
                    if event.is_end and last_load & 1 and last_load > 0:
                        loads.total_ns += time_ns - (last_load >> 1)
                        time_ns = last_load >> 1
                    last_load = code
                else:
                    time_ns = self._add_mark(event)
            else:
                time_ns = self._add_other(event)
            if time_ns < changed:
                changed = time_ns
        self.changed_from_ns = changed

    def _add_other(self, event: Event) -> int:
        """Adds a fact of a rarer kind; returns the moment from which things changed."""
        match event:
            case Mark():
                return self._add_mark(event)
            case CheckpointOperation():
                return self._add_checkpoint(event)
            case StepEnd(step, time_ns):
                return time_ns if self.step_ends.insert(time_ns, step) else NEVER_NS
            case JobStart(time_ns):
                return self._add_job_start(time_ns)
            case JobEnd(time_ns):
                return self._add_border(self.job_ends, time_ns)
            case Moment(time_ns):
                return _insert(self.moments, time_ns)
            case EntriesLost(counts):
                self.lost.update(counts)
        return NEVER_NS

    def _insert_step(self, step: StepStart) -> bool:
        inserted = self.steps.insert(step.time_ns, step.step)
        if inserted:
            self.reordered_from_ns = min(self.reordered_from_ns, step.time_ns)
        return inserted

    def _add_border(self, column: list[int], time_ns: int) -> int:
        changed_ns = _insert(column, time_ns)
        latest_ns = max(column[-1], self.steps.times[-1] if self.steps.times else 0)
        if time_ns < latest_ns or (column is self.job_starts and self.steps.times and time_ns == latest_ns):
            self.reordered_from_ns = min(self.reordered_from_ns, changed_ns)
        return changed_ns

    def _add_mark(self, mark: Mark) -> int:
        marks = self.marks.setdefault(mark.activity, Marks())
        broken, made = marks.add(mark.time_ns, is_end=mark.is_end)
        if mark.activity != DATA_LOADING:
            bucket, label = mark.activity
            if broken:
                self.overlays.discard(Overlay.of(*broken, bucket, label))
            for pair in made:
                self.overlays.add(Overlay.of(*pair, bucket, label))
        return min([mark.time_ns, *(start for start, _ in made), *(() if broken is None else broken[:1])])

    def _add_checkpoint(self, operation: CheckpointOperation) -> int:
        key = (operation.bucket, operation.step, operation.tier)
        reports = self.checkpoints.setdefault(key, set())
        report = (operation.start_ns, operation.duration_ns)
        if report in reports:
            return NEVER_NS
        reports.add(report)
        insort(self._checkpoint_starts, operation.start_ns)
        insort(self._checkpoint_ends, operation.start_ns + operation.duration_ns)
        return min(operation.start_ns, self._lay_checkpoint(key))

    def _lay_checkpoint(self, key: tuple[Bucket, int, str]) -> int:
        """Lays one overlay for each attempt that did this operation: many hosts may report it, it counts once.

        It begins with the first host and lasts as long as the hosts did on average.
        """
        by_attempt: dict[int, list[tuple[int, int]]] = {}
        for report in sorted(self.checkpoints[key]):
            by_attempt.setdefault(bisect_right(self.job_starts, report[0]), []).append(report)
        old = self._checkpoint_overlays.get(key, [])
        new = [
            Overlay.of(reports[0][0], reports[0][0] + sum(length for _, length in reports) // len(reports), key[0])
            for reports in by_attempt.values()
        ]
        for overlay in old:
            self.overlays.discard(overlay)
        for overlay in new:
            self.overlays.add(overlay)
        self._checkpoint_overlays[key] = new
        return min((overlay.start_ns for overlay in {*old} ^ {*new}), default=NEVER_NS)

    def _add_job_start(self, time_ns: int) -> int:
        changed = self._add_border(self.job_starts, time_ns)
        if changed != NEVER_NS and self._checkpoint_starts and self._checkpoint_starts[-1] >= time_ns:
            changed = min([changed, *(self._lay_checkpoint(key) for key in self.checkpoints)])
        return changed

    def earliest_ns(self) -> int:
        """Returns the time of the first fact, or `NEVER_NS` when there is none."""
        return self._first_from(-1)

    def next_after(self, time_ns: int) -> int:
        """Returns the time of the first fact after a moment, or `NEVER_NS`."""
        return self._first_from(time_ns)

    def _first_from(self, time_ns: int) -> int:
        first = NEVER_NS
        for column in self._time_columns():
            index = bisect_right(column, time_ns)
            if index < len(column):
                first = min(first, column[index])
        for marks in self.marks.values():
            following = marks.next_after(time_ns)
            if following is not None:
                first = min(first, following)
        return first

    def last_before(self, time_ns: int) -> int:
        """Returns the time of the last fact before a moment, or -1."""
        last = -1
        for column in self._time_columns():
            index = bisect_left(column, time_ns)
            if index:
                last = max(last, column[index - 1])
        for marks in self.marks.values():
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
            self.moments,
            self._checkpoint_starts,
            self._checkpoint_ends,
        )


def _insert(column: list[int], time_ns: int) -> int:
    index = bisect_left(column, time_ns)
    if index < len(column) and column[index] == time_ns:
        return NEVER_NS
    column.insert(index, time_ns)
    return time_ns
