"""The books: the sums of each attempt, which are kept until something in it changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement._ledger.accounting import (
    FAILED_YIELDS_TO,
    WASTED_YIELDS_TO,
    Account,
    Painted,
    Run,
    paint,
    runs_before,
    step_runs,
    waiting_runs,
)
from ml_goodput_measurement._ledger.attempts import Attempt, Attempts, Changes, recorded_end
from ml_goodput_measurement._ledger.intervals import Overlay
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.facts import Facts
    from ml_goodput_measurement._ledger.step_times import JobStepTimes

__all__ = ["Books"]

_MILESTONE_STEPS = 1024


@dataclass(slots=True)
class _Book:
    """The sums of one attempt."""

    account: Account | None = None
    """Sums up to the next attempt; None if they have to be computed, or while it is the last attempt."""
    settled: Account = field(default_factory=Account)
    """While it is the last attempt: up to the start of step `settled_step`."""
    settled_step: int = -1
    median: tuple[int, int | None] | None = None
    """Number of steps, and their median time, when it was last needed."""
    borrowed_median_ns: int | None = None
    """Median step time of the job, which `account` used because the attempt has none of its own; 0 if the job had none
    either."""
    milestones: list[tuple[int, Account]] = field(default_factory=list)
    """Sums up to the start of some of its steps, by index, from which the sums up to any moment are computed."""

    def forget(self, step: int) -> None:
        """Forget what was settled after the start of a step."""
        del self.milestones[bisect_right(self.milestones, step, key=itemgetter(0)) :]
        if self.settled_step > step:
            self.settled_step, settled = self.milestones[-1] if self.milestones else (-1, Account())
            self.settled = settled.copy()


class Books:
    """The accounts of a job's attempts: closed ones are computed once, the last one from its settled steps."""

    def __init__(self, attempts: Attempts, step_times: JobStepTimes) -> None:
        self._attempts = attempts
        self._step_times = step_times
        self._unsettled_steps = attempts.facts.sizes.unsettled_steps
        self._books: list[_Book] = []
        self._totals: list[Account] = [Account()]
        """Sums over all attempts before each, as far as they are up to date."""
        self._is_fresh = False
        """True if every closed attempt has its account."""
        self._last_startup_ns: int | None = None
        """Startup of the last attempt; None when out of date."""

    @property
    def _facts(self) -> Facts:
        return self._attempts.facts

    def update(self, changes: Changes, changed_ns: int) -> None:
        """Forget the sums in which something changed.

        Args:
            changes: The changes of the attempts.
            changed_ns: No other changes are before this moment.
        """
        del self._books[changes.kept :]
        self._books += [_Book() for _ in range(len(self._attempts) - changes.kept)]
        del self._totals[changes.kept + 1 :]
        self._is_fresh, self._last_startup_ns = False, None
        for index, cut_before in changes.cuts:
            attempt, book = self._attempts[index], self._books[index]
            cut = min(attempt.cut, cut_before)
            book.forget(bisect_left(self._facts.steps.numbers, cut, attempt.first, attempt.stop))
            self._forget_account(index)
        for index in range(len(self._books) - 1, -1, -1):
            attempt, book = self._attempts[index], self._books[index]
            self._forget_account(index)
            if changes.redivided:
                book.median = None
            load = attempt.first_load
            self._attempts.find_first_load(index)
            loads = [one[0] for one in (load, attempt.first_load) if one and load != attempt.first_load]
            book.forget(bisect_left(self._facts.steps.times, min([changed_ns, *loads])) - 1)
            if attempt.start_ns < changed_ns:
                break

    def closed(self) -> Account:
        """Return the sums over all attempts but the last, startup separated."""
        return self._before(len(self._books) - 1)

    def until(self, time_ns: int, end_ns: int, *, running: bool) -> Account:
        """Return the sums up to a moment, startup separated by the whole history.

        Costs what is new since the last call, and the overlays since the latest milestone before the moment.

        Args:
            time_ns: A time between the start of the first attempt and the end.
            end_ns: End of the wall time.
            running: True if the job still runs.
        """
        index = self._attempts.index_at(time_ns)
        total = self._before(index).copy()
        total.add(self.beginning(index, time_ns, end_ns, running=running))
        return total

    def last(self, end_ns: int, *, running: bool) -> Account:
        """Return the sums of the last attempt, and count only its latest steps again."""
        index, book, times = len(self._books) - 1, self._books[-1], self._facts.steps.times
        attempt = self._attempts[index]
        settle = attempt.stop - 1 - self._unsettled_steps
        if settle > attempt.first and settle - book.settled_step > self._unsettled_steps:
            self._settle(index, settle)
        account = book.settled.copy()
        start_ns = times[book.settled_step] if book.settled_step >= 0 else attempt.start_ns
        overlays = self._overlays(attempt, start_ns, end_ns)
        runs = self._runs(index, end_ns, running=running, settled=book.settled_step, overlays=overlays)
        account.add_pieces(paint(account.counting(runs), overlays, start_ns, end_ns))
        account.split_startup()
        self._last_startup_ns = account.buckets.get(Bucket.PROGRAM_STARTUP, 0)
        return account

    def _before(self, index: int) -> Account:
        """Return the sums over all attempts before one."""
        self._bring_up_to_date()
        while len(self._totals) <= index:
            total, account = self._totals[-1].copy(), self._books[len(self._totals) - 1].account
            assert account is not None
            total.add(account)
            self._totals.append(total)
        return self._totals[index]

    def _bring_up_to_date(self) -> None:
        """Make the accounts of closed attempts that are out of date."""
        if self._is_fresh:
            return
        self._is_fresh = True
        for index, book in enumerate(self._books[:-1]):
            if book.borrowed_median_ns is not None and book.borrowed_median_ns != self._job_median_ns():
                self._forget_account(index)
            if book.account is None:
                book.account = self._account_of(index, self._attempts.next_start_ns(index), running=False)
                book.borrowed_median_ns = None if self._own_median_ns(index) else self._job_median_ns()

    def _job_median_ns(self) -> int:
        # Sorts the times of all steps of the job, which few attempts need.
        return self._step_times.median_ns() or 0

    def _forget_account(self, index: int) -> None:
        self._books[index].account = None
        del self._totals[index + 1 :]

    def beginning(self, index: int, time_ns: int, end_ns: int, *, running: bool) -> Account:
        """Return the sums of an attempt up to a moment, which lies in it, startup separated by its whole life.

        Args:
            index: The attempt.
            time_ns: The moment.
            end_ns: End of the wall time.
            running: True if the job still runs.
        """
        attempt, times = self._attempts[index], self._facts.steps.times
        step = min(bisect_right(times, time_ns, attempt.first, attempt.stop) - 1, self._attempts.cut_index(index))
        settled, account = self._milestone(index, step)
        start_ns = times[settled] if settled >= 0 else attempt.start_ns
        overlays = self._overlays(attempt, start_ns, time_ns)
        end_ns = min(end_ns, self._attempts.next_start_ns(index))
        runs = self._runs(index, end_ns, running=running, settled=settled, overlays=overlays, exact_from=step)
        account.add_pieces(paint(account.counting(runs_before(runs, time_ns)), overlays, start_ns, time_ns))
        account.split_startup(self._startup_ns(index, end_ns, running=running))
        return account

    def _milestone(self, index: int, step: int) -> tuple[int, Account]:
        """Return a copy of the sums up to the latest milestone before a step, after making one there if it is far.

        A step of -1 means the start of the attempt.
        """
        book, attempt = self._books[index], self._attempts[index]
        position = bisect_right(book.milestones, step, key=itemgetter(0))
        settled, account = book.milestones[position - 1] if position else (-1, Account())
        if settled < book.settled_step <= step:
            settled, account = book.settled_step, book.settled
        account = account.copy()
        if step - max(settled, attempt.first) > self._unsettled_steps:
            self._add_steps(index, account, settled, step)
            settled = step
            book.milestones.insert(position, (settled, account.copy()))
        return settled, account

    def _startup_ns(self, index: int, end_ns: int, *, running: bool) -> int:
        """Return the startup of an attempt, which may depend on its whole life."""
        account = self._books[index].account
        if account is not None:
            return account.buckets.get(Bucket.PROGRAM_STARTUP, 0)
        if self._last_startup_ns is None:
            self.last(end_ns, running=running)
        assert self._last_startup_ns is not None
        return self._last_startup_ns

    def account_of(self, index: int, end_ns: int, *, running: bool) -> Account:
        """Return the sums of an attempt up to the next one or the end, with the startup apart; not to be changed."""
        if index < len(self._books) - 1:
            self._bring_up_to_date()
            account = self._books[index].account
            assert account is not None
            return account
        return self._account_of(index, end_ns, running=running)

    def _account_of(self, index: int, end_ns: int, *, running: bool) -> Account:
        account, attempt = Account(), self._attempts[index]
        overlays = self._overlays(attempt, attempt.start_ns, end_ns)
        runs = self._runs(index, end_ns, running=running, overlays=overlays)
        account.add_pieces(paint(account.counting(runs), overlays, attempt.start_ns, end_ns))
        account.split_startup()
        return account

    def pieces(
        self, index: int, end_ns: int, *, running: bool, between: tuple[int, int] | None = None
    ) -> Iterator[Painted]:
        """Yield the pieces of an attempt up to the next one or the end, with the startup separated.

        Args:
            index: The attempt.
            end_ns: End of the wall time.
            running: True if the job still runs.
            between: Only those of a window are wanted: some before it may be left out, and those after it are not
                exact. Costs what lies in it.
        """
        attempt = self._attempts[index]
        self._bring_up_to_date()
        startup = self._startup_ns(index, end_ns, running=running)
        end_ns = min(end_ns, self._attempts.next_start_ns(index))
        settled, start_ns, until_ns = -1, attempt.start_ns, end_ns
        if between is not None:
            until_ns = min(end_ns, between[1])
            times = self._facts.steps.times
            step = bisect_right(times, between[0], attempt.first, attempt.stop) - 1
            step = min(step, self._attempts.cut_index(index))
            if step > attempt.first:
                settled, start_ns, startup = step, times[step], 0
        runs = self._runs(index, end_ns, running=running, settled=settled)
        overlays = self._overlays(attempt, start_ns, until_ns)
        for piece in paint(runs, overlays, start_ns, until_ns):
            if startup and piece.run.first_step and piece.bucket is Bucket.PRODUCTIVE:
                middle = min(piece.end_ns, piece.start_ns + startup)
                startup -= middle - piece.start_ns
                yield piece._replace(end_ns=middle, bucket=Bucket.PROGRAM_STARTUP)
                if middle < piece.end_ns:
                    yield piece._replace(start_ns=middle)
            else:
                yield piece

    def _runs(
        self,
        index: int,
        end_ns: int,
        *,
        running: bool,
        settled: int = -1,
        overlays: Sequence[Overlay] | None = None,
        exact_from: int | None = None,
    ) -> Iterator[Run]:
        """Yield the runs of an attempt up to the next one or the end, from its start or from step `settled`.

        With `overlays`, only their sums may be exact (see `step_runs`), but each run from step `exact_from` on is.
        """
        attempt, times = self._attempts[index], self._facts.steps.times
        if not attempt.has_steps:
            yield from self._runs_without_steps(index, end_ns)
            return
        if settled < 0 and attempt.start_ns < times[attempt.first]:
            yield Run(attempt.start_ns, times[attempt.first], Bucket.UNKNOWN)
        final, cut = attempt.stop - 1, self._attempts.cut_index(index)
        first, stop = max(settled, attempt.first), min(cut, final)
        middle = stop if exact_from is None else max(first, min(exact_from, stop))
        yield from step_runs(self._facts, first, middle, attempt, overlays)
        yield from step_runs(self._facts, middle, stop, attempt)
        if cut < final:
            yield Run(times[cut], times[final], Bucket.WASTED_PROGRESS, yields_to=WASTED_YIELDS_TO)
        last_step = self.last_step_run(index, end_ns, running=running)
        if last_step.start_ns < last_step.end_ns:
            yield last_step
        is_ended = recorded_end(self._facts, final, end_ns) is not None
        yield from self._tail(index, last_step.end_ns, end_ns, is_ended=is_ended)

    def last_step_run(self, index: int, end_ns: int, *, running: bool) -> Run:
        """Return the run of an attempt's last step, which no other step follows."""
        facts, attempt = self._facts, self._attempts[index]
        final = attempt.stop - 1
        start_ns = facts.steps.times[final]
        is_wasted, is_undecided = facts.steps.numbers[final] >= attempt.cut, self._attempts.is_undecided(index)
        recorded_ns = recorded_end(facts, final, end_ns)
        if is_wasted:
            wasted_end_ns = self._estimated_end(index, start_ns, end_ns) if recorded_ns is None else recorded_ns
            estimated = recorded_ns is None
            return Run(start_ns, wasted_end_ns, Bucket.WASTED_PROGRESS, estimated=estimated, yields_to=WASTED_YIELDS_TO)
        if recorded_ns is not None:
            return Run(start_ns, recorded_ns, Bucket.PRODUCTIVE, 1, first_step=final == attempt.first)
        if is_undecided and running and index == len(self._attempts) - 1:
            return Run(start_ns, end_ns, Bucket.IN_FLIGHT)
        bucket = Bucket.IN_FLIGHT if is_undecided else Bucket.PRODUCTIVE
        return Run(start_ns, self._estimated_end(index, start_ns, end_ns), bucket, estimated=True)

    def to_state(self) -> list[Any]:
        """Return everything as JSON."""
        return [
            [
                None if book.account is None else book.account.to_state(),
                book.settled.to_state(),
                book.settled_step,
                book.borrowed_median_ns,
                book.median,
            ]
            for book in self._books
        ]

    @classmethod
    def from_state(cls, state: list[Any], attempts: Attempts, step_times: JobStepTimes) -> Books:
        """Return the books of a state from `to_state`."""
        books = cls(attempts, step_times)
        for account, settled, settled_step, median_ns, median in state:
            kept = None if account is None else Account.from_state(account)
            book = _Book(kept, Account.from_state(settled), settled_step, borrowed_median_ns=median_ns)
            book.median = None if median is None else (median[0], median[1])
            books._books.append(book)
        return books

    def _settle(self, index: int, settle: int) -> None:
        """Add the time before the start of step `settle` to the settled sums of the last attempt."""
        book = self._books[index]
        # After a late event, such as another host's report of a save, sums are computed from a milestone.
        last = book.milestones[-1][0] if book.milestones else self._attempts[index].first
        for step in (settle - _MILESTONE_STEPS, settle):
            if step > max(book.settled_step, last):
                self._add_steps(index, book.settled, book.settled_step, step)
                book.settled_step = step
            if step - last >= _MILESTONE_STEPS:
                book.milestones.append((step, book.settled.copy()))
                last = step

    def _add_steps(self, index: int, account: Account, lower: int, stop: int) -> None:
        """Add the time between the starts of two steps of an attempt, or from its own start if `lower` is -1."""
        attempt, times = self._attempts[index], self._facts.steps.times
        first = lower if lower >= 0 else attempt.first
        start_ns = times[lower] if lower >= 0 else attempt.start_ns
        overlays = self._overlays(attempt, start_ns, times[stop])
        runs: Iterable[Run] = step_runs(self._facts, first, stop, attempt, overlays)
        if start_ns < times[first]:
            runs = chain((Run(start_ns, times[first], Bucket.UNKNOWN),), runs)
        account.add_pieces(paint(account.counting(runs), overlays, start_ns, times[stop]))

    def _overlays(self, attempt: Attempt, start_ns: int, end_ns: int) -> list[Overlay]:
        """Return the overlays of a part of an attempt, in order and with its synchronous data load."""
        overlays, load = self._facts.overlays.between(start_ns, end_ns), attempt.first_load
        if load and load[0] < end_ns and load[1] > start_ns and load[0] < load[1]:
            overlays = sorted([*overlays, Overlay.of(*load, Bucket.DATA_LOADING_SYNC)])
        return overlays

    def _runs_without_steps(self, index: int, end_ns: int) -> Iterator[Run]:
        start_ns = self._attempts[index].start_ns
        if self._attempts.has_failed(index):
            yield Run(start_ns, end_ns, Bucket.INFRASTRUCTURE_RECOVERY, yields_to=FAILED_YIELDS_TO)
        else:
            yield from self._tail(index, start_ns, end_ns, is_ended=False)

    def _tail(self, index: int, start_ns: int, end_ns: int, *, is_ended: bool) -> Iterator[Run]:
        """Yield the runs after the last step of an attempt: unknown up to its last event, then recovery.

        Only a job start marks recovery; otherwise unrecorded work is possible. After the recorded end of a step,
        training waited for data loads.
        """
        job_starts = self._facts.job_starts
        lost_ns = end_ns
        if end_ns == self._attempts.next_start_ns(index):
            position = bisect_left(job_starts, end_ns)
            if job_starts[position : position + 1] == [end_ns]:
                lost_ns = max(start_ns, self._facts.last_before(end_ns))
        if is_ended:
            yield from waiting_runs(self._facts, start_ns, lost_ns, self._attempts[index])
        elif start_ns < lost_ns:
            yield Run(start_ns, lost_ns, Bucket.UNKNOWN)
        if lost_ns < end_ns:
            yield Run(lost_ns, end_ns, Bucket.INFRASTRUCTURE_RECOVERY)

    def _estimated_end(self, index: int, start_ns: int, end_ns: int) -> int:
        """Return the estimated end of a step: after the median step time, or at the next event."""
        following_ns = min(end_ns, self._facts.next_after(start_ns))
        process_end = self._attempts.process_end(index)
        if process_end is not None and process_end.time_ns > start_ns:
            following_ns = min(following_ns, process_end.time_ns)
        median_ns = self._own_median_ns(index) or self._step_times.median_ns()
        return following_ns if median_ns is None else min(start_ns + median_ns, following_ns)

    def _own_median_ns(self, index: int) -> int | None:
        book, attempt = self._books[index], self._attempts[index]
        steps = attempt.stop - attempt.first
        if book.median is None or book.median[0] != steps:
            book.median = steps, self._step_times.attempt_median_ns(index)
        return book.median[1]
