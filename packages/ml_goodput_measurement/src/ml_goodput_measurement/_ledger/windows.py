"""Parts of a job's life: the sums of a window, and the sums without excluded time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ml_goodput_measurement._ledger.accounting import Account
from ml_goodput_measurement._ledger.attempts import Attempts, recorded_end
from ml_goodput_measurement.partition import Bucket, BucketedTime, DaySum, Piece

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.books import Books
    from ml_goodput_measurement._ledger.intervals import Interval

__all__ = ["DAY_NS", "Life", "Window", "exclude"]

DAY_NS = 86_400 * 10**9

_BUCKETS = tuple(Bucket)


@dataclass(frozen=True, slots=True)
class Window(BucketedTime):
    """Sums over a window of a job's life, by the whole history; in nanoseconds unless specified otherwise."""

    start_ns: int
    end_ns: int
    buckets: dict[Bucket, int]
    """Has every bucket; with `outside_ns` they sum to `end_ns - start_ns`."""
    outside_ns: int
    """Before the job started or after it ended: in no bucket."""
    custom: dict[str, int]
    data_loading_async_ns: int
    estimated_ns: int
    last_step: int
    """The highest kept step that was done by the end of the window; 0 without one."""
    disruptions: int
    """The number of restarts in the window after an attempt with steps."""
    slice_shares: tuple[float, float] | None
    """Means over time of the slices that were active, and available, of all; None without reports."""


class Life:
    """A job's life up to one moment, with nothing added since: sums over any part of it."""

    def __init__(self, attempts: Attempts, books: Books, now_ns: int) -> None:
        self._attempts, self._books = attempts, books
        self.start_ns = attempts[0].start_ns
        self.end_ns, self.running = attempts.wall_end(now_ns)
        self.total = books.closed().copy()
        """Sums over the whole life."""
        self._last = books.last(self.end_ns, running=self.running)
        self.total.add(self._last)
        kept = [attempts.kept_steps(index) for index in range(len(attempts))]
        self.steps_kept = sum(count for count, _ in kept)
        self._last_steps = list(accumulate((last for _, last in kept), max))
        """The highest kept step of each attempt and those before it."""
        self._returns = [attempts[after].start_ns for _, after in attempts.disrupted()]
        """The times of restarts after an attempt with steps."""

    @property
    def last_step(self) -> int:
        """The highest kept step."""
        return self._last_steps[-1]

    @property
    def disruptions(self) -> int:
        """The number of restarts."""
        return len(self._returns)

    def between(self, start_ns: int, end_ns: int) -> Account:
        """Return the sums over the part of the life between two moments."""
        account = self._until(end_ns).copy()
        account.subtract(self._until(start_ns))
        return account

    def days(self) -> Iterator[DaySum]:
        """Yield the sums of each attempt by day (UTC), bucket and type of custom event, without those that are zero.

        The days of an attempt sum to its time up to the next attempt. Costs a little for each midnight.
        """
        final = len(self._attempts) - 1
        for index, attempt in enumerate(self._attempts):
            end_ns = min(self.end_ns, self._attempts.next_start_ns(index))
            whole = self._last if index == final else self._books.account_of(index, end_ns, running=self.running)
            first, last = attempt.start_ns // DAY_NS, max(attempt.start_ns, end_ns - 1) // DAY_NS
            before = Account()
            for day in range(first, last + 1):
                until = whole
                if day < last:
                    midnight_ns = (day + 1) * DAY_NS
                    until = self._books.beginning(index, midnight_ns, self.end_ns, running=self.running)
                for bucket in _BUCKETS:
                    length = until.buckets.get(bucket, 0) - before.buckets.get(bucket, 0)
                    if not length:
                        continue
                    if bucket is not Bucket.CUSTOM:
                        yield DaySum(index + 1, day, bucket, "", length)
                        continue
                    for label in sorted(until.custom):
                        part = until.custom[label] - before.custom.get(label, 0)
                        if part:
                            yield DaySum(index + 1, day, bucket, label, part)
                before = until

    def without(self, exclusions: Iterable[Interval]) -> Account:
        """Return the sums, with the time of some intervals in the bucket of excluded time.

        Args:
            exclusions: Disjoint.
        """
        account, excluded_ns = self.total.copy(), 0
        for start_ns, end_ns in self.parts(exclusions):
            account.subtract(self.between(start_ns, end_ns))
            excluded_ns += end_ns - start_ns
        account.buckets[Bucket.EXCLUDED] = excluded_ns
        return account

    def parts(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Return the parts of intervals that lie in the life."""
        clipped = ((max(start_ns, self.start_ns), min(end_ns, self.end_ns)) for start_ns, end_ns in intervals)
        return [interval for interval in clipped if interval[0] < interval[1]]

    def window(self, start_ns: int, end_ns: int) -> Window:
        """Return the sums of a window."""
        account = self.between(start_ns, end_ns)
        inside_ns = sum(end - start for start, end in self.parts([(start_ns, end_ns)]))
        return Window(
            start_ns=start_ns,
            end_ns=end_ns,
            buckets={bucket: account.buckets.get(bucket, 0) for bucket in _BUCKETS},
            outside_ns=end_ns - start_ns - inside_ns,
            custom={label: length for label, length in account.custom.items() if length},
            data_loading_async_ns=self._loads_beside_training_ns(start_ns, end_ns, account),
            estimated_ns=account.estimated_ns,
            last_step=self._last_step_at(end_ns),
            disruptions=bisect_left(self._returns, end_ns) - bisect_left(self._returns, start_ns),
            slice_shares=self.slice_shares([(start_ns, end_ns)]),
        )

    def loads_beside_training_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the time of data loads between two moments, without those that training had to wait for."""
        return self._loads_beside_training_ns(start_ns, end_ns, self.between(start_ns, end_ns))

    def _loads_beside_training_ns(self, start_ns: int, end_ns: int, account: Account) -> int:
        loads = self._attempts.facts.loads
        total_ns = loads.total_before(end_ns) - loads.total_before(start_ns) - account.awaited_loads_ns
        for index in range(self._attempts.index_at(start_ns), self._attempts.index_at(end_ns) + 1):
            load = self._attempts[index].first_load
            if load is not None:
                total_ns -= max(0, min(load[1], end_ns) - max(load[0], start_ns))
        return total_ns

    def slice_shares(
        self, intervals: Iterable[Interval], exclusions: Iterable[Interval] = ()
    ) -> tuple[float, float] | None:
        """Return the means of active and of available slices over the parts of intervals that lie in the life."""
        return self._attempts.facts.slices.shares(self.parts(intervals), self.parts(exclusions))

    def _until(self, time_ns: int) -> Account:
        if time_ns <= self.start_ns:
            return Account()
        if time_ns >= self.end_ns:
            return self.total
        return self._books.until(time_ns, self.end_ns, running=self.running)

    def _last_step_at(self, time_ns: int) -> int:
        """Return the highest kept step that was done by a moment."""
        if time_ns >= self.end_ns:
            return self.last_step
        if time_ns < self.start_ns:
            return 0
        attempts = self._attempts
        index = attempts.index_at(time_ns)
        last = self._last_steps[index - 1] if index else 0
        attempt, steps = attempts[index], attempts.facts.steps
        current = bisect_right(steps.times, time_ns, attempt.first, attempt.stop) - 1
        if current < attempt.first:
            return last
        stop = min(current + self._is_done(index, current, time_ns), attempts.cut_index(index))
        return max(last, steps.numbers[stop - 1]) if stop > attempt.first else last

    def _is_done(self, index: int, step: int, time_ns: int) -> bool:
        """Return True if a step that started by a moment was done by then, as far as that is known."""
        if recorded_end(self._attempts.facts, step, time_ns) is not None:
            return True
        if step < self._attempts[index].stop - 1:
            return False
        run = self._books.last_step_run(
            index, min(self.end_ns, self._attempts.next_start_ns(index)), running=self.running
        )
        return run.bucket is Bucket.PRODUCTIVE and run.end_ns <= time_ns


def exclude(pieces: Iterable[Piece], exclusions: Sequence[Interval]) -> Iterator[Piece]:
    """Cut excluded time out of pieces, and add pieces of excluded time instead.

    Args:
        pieces: In order.
        exclusions: In order, disjoint.
    """
    starts, ends = [start_ns for start_ns, _ in exclusions], [end_ns for _, end_ns in exclusions]
    for piece in pieces:
        first, stop = bisect_right(ends, piece.start_ns), bisect_left(starts, piece.end_ns)
        borders = [border for interval in exclusions[first:stop] for border in interval]
        inner = [border for border in borders if piece.start_ns < border < piece.end_ns]
        is_excluded = first < stop and starts[first] <= piece.start_ns
        for start_ns, end_ns in pairwise([piece.start_ns, *inner, piece.end_ns]):
            part = replace(piece, start_ns=start_ns, end_ns=end_ns)
            yield replace(part, bucket=Bucket.EXCLUDED, label="", estimated=False) if is_excluded else part
            is_excluded = not is_excluded
