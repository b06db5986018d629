"""The ledger: a pure, incremental fold from events to an exact partition of a job's wall time.

    events -> Facts (a set in sorted columns) -> attempts -> runs (what the steps say) -> pieces (what lies over them)

The answer is a function of the set of facts alone, so duplicates, disorder and lateness change nothing. It is
incremental because a new fact changes only what lies after it: attempts before it keep their account, and so does
the part of the running attempt before the settled step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import sub
from typing import Any

from ml_goodput_measurement.accounting import (
    FAILED_YIELDS_TO,
    WASTED_YIELDS_TO,
    Account,
    Painted,
    Run,
    paint,
    recorded_end,
    step_runs,
)
from ml_goodput_measurement.attempts import Attempt, extend_attempts, wall_start_ns
from ml_goodput_measurement.events import EventBatch
from ml_goodput_measurement.facts import NEVER_NS, Facts
from ml_goodput_measurement.overlays import Overlay
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption, Piece
from ml_goodput_measurement.step_times import StepTimes, median_of

__all__ = ["Column", "Ledger", "Summary"]

Column = Any
"""An array of 64-bit integers or floats."""

_UNSETTLED_STEPS = 128
"""So many of the latest steps are accounted for anew by each query: an overlay may still reach back over them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Where the time of a job went, in sums; all in nanoseconds unless said otherwise."""

    start_ns: int
    end_ns: int
    running: bool
    buckets: dict[Bucket, int]
    """Every bucket is there; they sum to `end_ns - start_ns`."""
    custom: dict[str, int]
    data_loading_async_ns: int
    estimated_ns: int
    last_step: int
    steps_kept: int
    disruptions: int
    ideal_step_seconds: float | None

    @property
    def wall_ns(self) -> int:
        """The job's wall time."""
        return self.end_ns - self.start_ns


@dataclass(slots=True)
class _Entry:
    """An attempt in the ledger: what it depends on besides its own facts, and its account."""

    attempt: Attempt
    cut: int = NEVER_NS
    """The lowest first step of a later attempt: its steps from there on are wasted."""
    account: Account | None = None
    """Sums up to the next attempt; None when it has to be made anew, or while it is the last."""
    settled: Account = field(default_factory=Account)
    """Sums up to the start of step `settled_step`; kept while it is the last attempt."""
    settled_step: int = -1
    median_ns: int | None = None
    """Median step time; None when not known yet."""
    borrows_median: bool = False
    """True where the median of the whole job was used."""

    def to_state(self) -> dict[str, Any]:
        """Returns everything as JSON."""
        attempt = self.attempt
        return {
            "attempt": [attempt.start_ns, attempt.first, attempt.stop, attempt.first_load],
            "cut": self.cut,
            "account": None if self.account is None else self.account.to_state(),
            "settled": self.settled.to_state(),
            "settled_step": self.settled_step,
            "median_ns": self.median_ns,
            "borrows_median": self.borrows_median,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> _Entry:
        """Returns the entry that `to_state` was asked of."""
        start_ns, first, stop, load = state["attempt"]
        return cls(
            Attempt(start_ns, first, stop, None if load is None else (load[0], load[1])),
            state["cut"],
            None if state["account"] is None else Account.from_state(state["account"]),
            Account.from_state(state["settled"]),
            state["settled_step"],
            state["median_ns"],
            state["borrows_median"],
        )


class Ledger:
    """Folds events into a partition of the job's wall time.

    Of two recorders of one job each has a ledger of its own: see `calculator`.
    """

    def __init__(self) -> None:
        self.facts = Facts()
        self._entries: list[_Entry] = []
        self._divided_until_ns = -1
        """Steps, job starts and job ends up to this moment are divided into the attempts of `_entries`."""
        self._step_times: StepTimes | None = None
        self._measured = 0
        """Steps before this index have their time in `_step_times`."""
        self._closed: tuple[Account, int, int] | None = None
        """Sums over all attempts but the last: account, kept steps, last step; None when out of date."""

    def add(self, batch: EventBatch) -> None:
        """Adds events, in any order and as often as they come."""
        self.facts.add(batch)

    def summary(self, now_ns: int) -> Summary | None:
        """Returns where the time went up to the end of the job, or to `now_ns` while it runs; None without a fact.

        Costs what was added since the last call.
        """
        self._settle()
        if not self._entries:
            return None
        end_ns, running = self._wall_end(now_ns)
        closed, kept, last_step = self._closed_sums()
        entry = self._entries[-1]
        account = self._last_account(entry, end_ns, running=running)
        account.split_startup()
        buckets = {bucket: closed.buckets.get(bucket, 0) + account.buckets.get(bucket, 0) for bucket in Bucket}
        custom = dict(closed.custom)
        for label, length in account.custom.items():
            custom[label] = custom.get(label, 0) + length
        kept_here, last_here = self._kept_steps(entry, len(self._entries) - 1)
        step_times = self._measure()
        ideal_ns = step_times.ideal_ns()
        return Summary(
            start_ns=self._entries[0].attempt.start_ns,
            end_ns=end_ns,
            running=running,
            buckets=buckets,
            custom=custom,
            data_loading_async_ns=self._data_loading_async_ns(),
            estimated_ns=closed.estimated_ns + account.estimated_ns,
            last_step=max(last_step, last_here),
            steps_kept=kept + kept_here,
            disruptions=len(self._disrupted()),
            ideal_step_seconds=None if ideal_ns is None else ideal_ns / 1e9,
        )

    def timeline(self, now_ns: int) -> list[Piece]:
        """Returns the job's life as disjoint pieces in order of time, which cover its wall time."""
        self._settle()
        pieces: list[Piece] = []
        end_ns, running = self._wall_end(now_ns) if self._entries else (0, False)
        for number, entry in enumerate(self._entries, 1):
            for painted in self._painted(entry, number - 1, end_ns, running=running):
                piece = Piece(
                    painted.start_ns,
                    painted.end_ns,
                    painted.bucket,
                    number,
                    painted.label,
                    painted.run.estimated,
                )
                _join(pieces, piece)
        return pieces

    def attempts(self, now_ns: int) -> list[AttemptSummary]:
        """Returns the attempts, in order."""
        self._settle()
        if not self._entries:
            return []
        end_ns, running = self._wall_end(now_ns)
        return [self._attempt_summary(index, end_ns, running=running) for index in range(len(self._entries))]

    def disruptions(self, now_ns: int) -> list[Disruption]:
        """Returns each time that the job came back after an attempt that had made steps, in order."""
        attempts = self.attempts(now_ns)
        stops = [entry.attempt.stop for entry in self._entries]
        disruptions = []
        for number, (before, after) in enumerate(self._disrupted(), 1):
            lost = self._newly_lost(before, after, stops)
            disruptions.append(_disruption(number, attempts[before : after + 1], *lost))
        return disruptions

    def _newly_lost(self, before: int, after: int, stops: list[int]) -> tuple[int, int]:
        """Returns how many steps a return went back behind that no earlier one had, and their time.

        Args:
            before: Index of the attempt that was cut short.
            after: Index of the attempt that came back.
            stops: For each attempt the index after its last step that is not lost yet; brought up to date.
        """
        resumed, numbers, times = self._entries[after].attempt, self.facts.steps.numbers, self.facts.steps.times
        steps = lost_ns = 0
        if not resumed.has_steps:
            return steps, lost_ns
        for index in range(before + 1):
            attempt = self._entries[index].attempt
            cut = bisect_left(numbers, numbers[resumed.first], attempt.first, stops[index])
            if cut == stops[index]:
                continue
            end_ns = self._next_start(index)
            if stops[index] < attempt.stop:
                end_ns = times[stops[index]]
            else:
                end_ns = self._last_step_run(self._entries[index], index, end_ns, running=False).end_ns
            steps, lost_ns, stops[index] = steps + stops[index] - cut, lost_ns + end_ns - times[cut], cut
        return steps, lost_ns

    def step_seconds(self) -> dict[int, float]:
        """Returns the time from start to start of each kept step that the next number follows. Costs all steps."""
        self._settle()
        times, numbers = self.facts.steps.times, self.facts.steps.numbers
        return {
            numbers[index]: (times[index + 1] - times[index]) / 1e9
            for entry in self._entries
            for index in range(entry.attempt.first, entry.attempt.stop - 1)
            if numbers[index] < entry.cut and numbers[index + 1] == numbers[index] + 1
        }

    def to_state(self) -> tuple[dict[str, Any], list[Column]]:
        """Returns everything, facts and what is derived, as JSON and as columns: see `from_state`."""
        self._settle()
        blocks, sums = self._measure().to_blocks()
        columns: list[Column] = [*self.facts.columns(), *blocks]
        state = {
            "columns": [(column.typecode, len(column)) for column in columns],
            "step_time_sums": sums,
            "facts": self.facts.to_state(),
            "entries": [entry.to_state() for entry in self._entries],
            "measured": self._measured,
        }
        return state, columns

    @classmethod
    def from_state(cls, state: dict[str, Any], columns: list[Column]) -> Ledger:
        """Returns the ledger that `to_state` was asked of."""
        ledger = cls()
        blocks = columns[-len(state["step_time_sums"]) :] if state["step_time_sums"] else []
        ledger.facts = Facts.from_state(state["facts"], columns[: len(columns) - len(blocks)])
        ledger._entries = [_Entry.from_state(entry) for entry in state["entries"]]
        ledger._divided_until_ns = ledger.facts.latest_border_ns()
        ledger._step_times = StepTimes.of_blocks(blocks, state["step_time_sums"])
        ledger._measured = state["measured"]
        return ledger

    # --- bringing what is derived up to the facts -------------------------------------------------------------

    def _settle(self) -> None:
        changed_ns, self.facts.changed_from_ns = self.facts.changed_from_ns, NEVER_NS
        if changed_ns == NEVER_NS:
            return
        self._undo()
        kept = len(self._entries)
        attempts = [entry.attempt for entry in self._entries]
        extend_attempts(attempts, self.facts)
        self._entries += [_Entry(attempt) for attempt in attempts[kept:]]
        self._divided_until_ns = self.facts.latest_border_ns()
        self._cut_repeated()
        self._forget_accounts(changed_ns)

    def _undo(self) -> None:
        """Forgets the attempts that late facts may have changed."""
        late_ns, self.facts.attempts_changed_from_ns = self.facts.attempts_changed_from_ns, NEVER_NS
        if self._entries and self._entries[0].attempt.start_ns != wall_start_ns(self.facts):
            late_ns = -1
        if late_ns > self._divided_until_ns:
            return
        while self._entries and self._entries[-1].attempt.start_ns >= late_ns:
            self._entries.pop()
        if self._entries:
            last = self._entries[-1].attempt
            last.stop = last.first
        self._step_times = self._closed = None

    def _cut_repeated(self) -> None:
        """Tells each attempt from which step on later ones repeat it."""
        cut, numbers = NEVER_NS, self.facts.steps.numbers
        for entry in reversed(self._entries):
            if entry.cut != cut:
                self._unmeasure(entry, cut)
                entry.cut = cut
                entry.account = None
            if entry.attempt.has_steps:
                cut = min(cut, numbers[entry.attempt.first])

    def _forget_accounts(self, changed_ns: int) -> None:
        """Forgets the sums of the attempts in which something changed, and finds their first loads."""
        loads = self.facts.loads
        for index in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[index]
            entry.account = None
            entry.attempt.first_load = loads.first_pair(entry.attempt.start_ns, self._next_start(index))
            if entry.settled_step >= 0 and changed_ns <= self.facts.steps.times[entry.settled_step]:
                entry.settled, entry.settled_step = Account(), -1
            if entry.attempt.start_ns < changed_ns:
                break

    def _next_start(self, index: int) -> int:
        return self._entries[index + 1].attempt.start_ns if index + 1 < len(self._entries) else NEVER_NS

    # --- the wall, the steps that count ---------------------------------------------------------------------------

    def _wall_end(self, now_ns: int) -> tuple[int, bool]:
        """Returns the end of the wall time, and whether the job still runs."""
        facts = self.facts
        if facts.job_ends and facts.job_ends[-1] == facts.latest_border_ns():
            return facts.job_ends[-1], False
        return max(now_ns, facts.last_before(NEVER_NS)), True

    def _kept_steps(self, entry: _Entry, index: int) -> tuple[int, int]:
        """Returns how many steps of an attempt count, and the number of the last; the one in flight does not."""
        attempt, numbers = entry.attempt, self.facts.steps.numbers
        stop = bisect_left(numbers, entry.cut, attempt.first, attempt.stop)
        if stop == attempt.stop > attempt.first and self._is_undecided(entry, index):
            stop -= recorded_end(self.facts, stop - 1, self._next_start(index)) is None
        return stop - attempt.first, numbers[stop - 1] if stop > attempt.first else 0

    def _closed_sums(self) -> tuple[Account, int, int]:
        job_median = None
        for index, entry in enumerate(self._entries[:-1]):
            if entry.account is not None and entry.borrows_median:
                job_median = self._job_median_ns()
                if entry.median_ns != job_median:
                    entry.account = None
            if entry.account is None:
                self._closed = None
                entry.account = self._account_of(entry, index, self._next_start(index), running=False)
                entry.account.split_startup()
        if self._closed is None:
            total, kept, last_step = Account(), 0, 0
            for index, entry in enumerate(self._entries[:-1]):
                assert entry.account is not None
                for bucket, length in entry.account.buckets.items():
                    total.buckets[bucket] = total.buckets.get(bucket, 0) + length
                for label, length in entry.account.custom.items():
                    total.custom[label] = total.custom.get(label, 0) + length
                total.estimated_ns += entry.account.estimated_ns
                count, last = self._kept_steps(entry, index)
                kept, last_step = kept + count, max(last_step, last)
            self._closed = total, kept, last_step
        return self._closed

    def _disrupted(self) -> list[tuple[int, int]]:
        """Returns the indices of each attempt with steps and the next one with steps, or the last."""
        stepping = [index for index, entry in enumerate(self._entries) if entry.attempt.has_steps]
        last = len(self._entries) - 1
        if stepping and stepping[-1] != last:
            stepping.append(last)
        return list(pairwise(stepping))

    # --- an attempt's account ---------------------------------------------------------------------------------------

    def _account_of(self, entry: _Entry, index: int, end_ns: int, *, running: bool) -> Account:
        account = Account()
        runs = account.counting(self._runs(entry, index, end_ns, running=running))
        account.add_pieces(self._paint(entry, runs, entry.attempt.start_ns, end_ns))
        return account

    def _last_account(self, entry: _Entry, end_ns: int, *, running: bool) -> Account:
        """Returns the account of the last attempt, of which only the latest steps are counted anew."""
        attempt, times = entry.attempt, self.facts.steps.times
        settle = attempt.stop - 1 - _UNSETTLED_STEPS
        if settle > attempt.first and settle - entry.settled_step > _UNSETTLED_STEPS:
            self._settle_steps(entry, settle)
        account = entry.settled.copy()
        start_ns = times[entry.settled_step] if entry.settled_step >= 0 else attempt.start_ns
        runs = self._runs(entry, len(self._entries) - 1, end_ns, running=running, settled=entry.settled_step)
        account.add_pieces(self._paint(entry, account.counting(runs), start_ns, end_ns))
        return account

    def _settle_steps(self, entry: _Entry, settle: int) -> None:
        """Moves what lies before the start of step `settle` into the settled sums of the last attempt."""
        attempt, times = entry.attempt, self.facts.steps.times
        begin = entry.settled_step if entry.settled_step >= 0 else attempt.first
        runs = step_runs(self.facts, begin, settle, attempt.first)
        start_ns = times[begin]
        if entry.settled_step < 0:
            runs = _chain(Run(attempt.start_ns, start_ns, Bucket.UNKNOWN), runs)
            start_ns = attempt.start_ns
        entry.settled.add_pieces(self._paint(entry, entry.settled.counting(runs), start_ns, times[settle]))
        entry.settled_step = settle

    def _paint(self, entry: _Entry, runs: Iterable[Run], start_ns: int, end_ns: int) -> Iterator[Painted]:
        overlays = self.facts.overlays.between(start_ns, end_ns)
        load = entry.attempt.first_load
        if load and load[0] < end_ns and load[1] > start_ns and load[0] < load[1]:
            overlays = sorted([*overlays, Overlay.of(*load, Bucket.DATA_LOADING_SYNC)])
        return paint(runs, overlays, start_ns, end_ns)

    def _runs(self, entry: _Entry, index: int, end_ns: int, *, running: bool, settled: int = -1) -> Iterator[Run]:
        """Yields the runs of an attempt up to its end, from its start or from the start of step `settled`."""
        attempt, times = entry.attempt, self.facts.steps.times
        is_last = index == len(self._entries) - 1
        if not attempt.has_steps:
            yield from self._runs_without_steps(attempt, index, end_ns, is_last=is_last)
            return
        if settled < 0 and attempt.start_ns < times[attempt.first]:
            yield Run(attempt.start_ns, times[attempt.first], Bucket.UNKNOWN)
        begin, final = max(settled, attempt.first), attempt.stop - 1
        cut = bisect_left(self.facts.steps.numbers, entry.cut, attempt.first, attempt.stop)
        yield from step_runs(self.facts, begin, min(cut, final), attempt.first)
        if cut < final:
            yield Run(times[cut], times[final], Bucket.WASTED_PROGRESS, yields_to=WASTED_YIELDS_TO)
        last_step = self._last_step_run(entry, index, end_ns, running=running)
        step_end_ns = last_step.end_ns
        if last_step.start_ns < step_end_ns:
            yield last_step
        if is_last:
            if step_end_ns < end_ns:
                yield Run(step_end_ns, end_ns, Bucket.UNKNOWN)
            return
        yield from self._tail(step_end_ns, end_ns)

    def _tail(self, start_ns: int, end_ns: int) -> Iterator[Run]:
        """Yields what follows in an attempt that another one followed: up to its last word, then recovery.

        Only a job start tells recovery from work that nobody recorded.
        """
        position = bisect_left(self.facts.job_starts, end_ns)
        if self.facts.job_starts[position : position + 1] != [end_ns]:
            lost_ns = end_ns
        else:
            lost_ns = max(start_ns, self.facts.last_before(end_ns))
        if start_ns < lost_ns:
            yield Run(start_ns, lost_ns, Bucket.UNKNOWN)
        if lost_ns < end_ns:
            yield Run(lost_ns, end_ns, Bucket.INFRASTRUCTURE_RECOVERY)

    def _runs_without_steps(self, attempt: Attempt, index: int, end_ns: int, *, is_last: bool) -> Iterator[Run]:
        if is_last:
            if attempt.start_ns < end_ns:
                yield Run(attempt.start_ns, end_ns, Bucket.UNKNOWN)
        elif any(entry.attempt.has_steps for entry in self._entries[:index]):
            yield Run(attempt.start_ns, end_ns, Bucket.INFRASTRUCTURE_RECOVERY, yields_to=FAILED_YIELDS_TO)
        else:
            yield from self._tail(attempt.start_ns, end_ns)

    def _last_step_run(self, entry: _Entry, index: int, end_ns: int, *, running: bool) -> Run:
        """Returns the run of an attempt's last step, which no other step follows."""
        facts, attempt = self.facts, entry.attempt
        final = attempt.stop - 1
        start_ns = facts.steps.times[final]
        is_wasted, is_undecided = facts.steps.numbers[final] >= entry.cut, self._is_undecided(entry, index)
        recorded_ns = recorded_end(facts, final, end_ns)
        if recorded_ns is not None and not is_wasted:
            return Run(start_ns, recorded_ns, Bucket.PRODUCTIVE, 1, first_step=final == attempt.first)
        if is_undecided and index == len(self._entries) - 1 and running:
            return Run(start_ns, end_ns, Bucket.IN_FLIGHT)
        step_end_ns = recorded_ns if recorded_ns is not None else self._estimated_end(entry, start_ns, end_ns)
        estimated = recorded_ns is None
        if is_wasted:
            return Run(start_ns, step_end_ns, Bucket.WASTED_PROGRESS, estimated=estimated, yields_to=WASTED_YIELDS_TO)
        return Run(start_ns, step_end_ns, Bucket.IN_FLIGHT if is_undecided else Bucket.PRODUCTIVE, estimated=True)

    def _is_undecided(self, entry: _Entry, index: int) -> bool:
        """Whether nobody knows yet if an attempt's last step counts: no later attempt made steps, no job end."""
        if entry.cut != NEVER_NS:
            return False
        last_step_ns = self.facts.steps.times[entry.attempt.stop - 1]
        position = bisect_left(self.facts.job_ends, last_step_ns)
        return position == len(self.facts.job_ends) or self.facts.job_ends[position] > self._next_start(index)

    def _estimated_end(self, entry: _Entry, start_ns: int, end_ns: int) -> int:
        following_ns = min(end_ns, self.facts.next_after(start_ns))
        median_ns = self._median_ns(entry)
        return following_ns if median_ns is None else min(start_ns + median_ns, following_ns)

    # --- step times -------------------------------------------------------------------------------------------------

    def _median_ns(self, entry: _Entry) -> int | None:
        times = self._step_times_of(entry.attempt, 0, NEVER_NS)
        entry.borrows_median = not times
        entry.median_ns = median_of(times) if times else self._job_median_ns()
        return entry.median_ns

    def _job_median_ns(self) -> int | None:
        median_ns = self._measure().median_ns()
        return None if median_ns is None else int(median_ns)

    def _step_times_of(self, attempt: Attempt, begin: int, cut: int, stop: int = NEVER_NS) -> list[int]:
        """Returns start to start of an attempt's steps that the next number follows.

        Args:
            attempt: The attempt.
            begin: Index of the first step.
            cut: Number of the first step that does not count.
            stop: Index after the last step.
        """
        times, numbers = self.facts.steps.times, self.facts.steps.numbers
        begin = max(begin, attempt.first)
        stop = min(stop, attempt.stop - 1, bisect_left(numbers, cut, attempt.first, attempt.stop))
        if begin >= stop:
            return []
        here, following = times[begin:stop], times[begin + 1 : stop + 1]
        if numbers[stop] - numbers[begin] == stop - begin:
            return list(map(sub, following, here))
        return [
            times[index + 1] - times[index] for index in range(begin, stop) if numbers[index + 1] == numbers[index] + 1
        ]

    def _measure(self) -> StepTimes:
        """Returns the times of the job's kept steps."""
        if self._step_times is None:
            kept = (self._step_times_of(entry.attempt, 0, entry.cut) for entry in self._entries)
            self._step_times = StepTimes(chain.from_iterable(kept))
        else:
            for entry in reversed(self._entries):
                if entry.attempt.stop <= self._measured:
                    break
                for time in self._step_times_of(entry.attempt, self._measured, entry.cut):
                    self._step_times.add(time)
        self._measured = max(0, len(self.facts.steps) - 1)
        return self._step_times

    def _unmeasure(self, entry: _Entry, cut: int) -> None:
        """Takes the steps that are now repeated out of the step times."""
        if self._step_times is None:
            return
        attempt, numbers = entry.attempt, self.facts.steps.numbers
        begin = bisect_left(numbers, cut, attempt.first, attempt.stop)
        repeated = self._step_times_of(attempt, begin, entry.cut, self._measured)
        if len(repeated) > len(self._step_times) // 8:
            self._step_times = None
            return
        for time in repeated:
            self._step_times.remove(time)

    # --- reports ------------------------------------------------------------------------------------------------------

    def _data_loading_async_ns(self) -> int:
        loads = (entry.attempt.first_load for entry in self._entries)
        return self.facts.loads.total_ns - sum(load[1] - load[0] for load in loads if load)

    def _painted(self, entry: _Entry, index: int, end_ns: int, *, running: bool) -> Iterator[Painted]:
        """Yields the pieces of an attempt, with its startup."""
        end_ns = min(end_ns, self._next_start(index))
        account = self._account_of(entry, index, end_ns, running=running)
        startup = account.startup_ns()
        runs = self._runs(entry, index, end_ns, running=running)
        for painted in self._paint(entry, runs, entry.attempt.start_ns, end_ns):
            if startup and painted.run.first_step and painted.bucket is Bucket.PRODUCTIVE:
                middle = min(painted.end_ns, painted.start_ns + startup)
                startup -= middle - painted.start_ns
                yield painted._replace(end_ns=middle, bucket=Bucket.PROGRAM_STARTUP)
                if middle == painted.end_ns:
                    continue
                painted = painted._replace(start_ns=middle)
            yield painted

    def _attempt_summary(self, index: int, end_ns: int, *, running: bool) -> AttemptSummary:
        entry, numbers = self._entries[index], self.facts.steps.numbers
        attempt, is_last = entry.attempt, index == len(self._entries) - 1
        next_ns = min(end_ns, self._next_start(index))
        account = self._account_of(entry, index, next_ns, running=running)
        account.split_startup()
        position = bisect_left(self.facts.job_ends, attempt.start_ns)
        said_end = position < len(self.facts.job_ends) and self.facts.job_ends[position] <= next_ns
        ended = AttemptEnd.RUNNING if is_last and running else AttemptEnd.LOST
        if said_end and ended is AttemptEnd.LOST:
            ended = AttemptEnd.JOB_END
        cut = bisect_left(numbers, entry.cut, attempt.first, attempt.stop)
        return AttemptSummary(
            number=index + 1,
            start_ns=attempt.start_ns,
            end_ns=end_ns if is_last else max(attempt.start_ns, self.facts.last_before(next_ns)),
            ended=ended,
            first_step=numbers[attempt.first] if attempt.has_steps else None,
            last_step=numbers[attempt.stop - 1] if attempt.has_steps else None,
            steps_kept=self._kept_steps(entry, index)[0],
            steps_lost=attempt.stop - cut,
            buckets=account.buckets,
            custom=account.custom,
        )


def _disruption(number: int, attempts: list[AttemptSummary], steps_lost: int, wasted_ns: int) -> Disruption:
    """Makes a disruption from the attempt before it, the failed ones, and the attempt after it."""
    before, after = attempts[0], attempts[-1]
    restart = (
        Bucket.TPU_INITIALIZATION,
        Bucket.TRAINING_PREP,
        Bucket.CHECKPOINT_RESTORE,
        Bucket.DATA_LOADING_SYNC,
        Bucket.PROGRAM_STARTUP,
    )
    return Disruption(
        number=number,
        attempt=before.number,
        last_event_ns=before.end_ns,
        resumed_ns=after.start_ns,
        resumed_step=after.first_step,
        failed_attempts=len(attempts) - 2,
        steps_lost=steps_lost,
        wasted_ns=wasted_ns,
        recovery_ns=sum(attempt.buckets.get(Bucket.INFRASTRUCTURE_RECOVERY, 0) for attempt in attempts[:-1]),
        restart_ns=sum(after.buckets.get(bucket, 0) for bucket in restart),
    )


def _chain(first: Run, others: Iterable[Run]) -> Iterator[Run]:
    if first.start_ns < first.end_ns:
        yield first
    yield from others


def _join(pieces: list[Piece], piece: Piece) -> None:
    """Appends a piece, or lengthens the last one by it where they are the same."""
    last = pieces[-1] if pieces else None
    same = last and (last.bucket, last.label, last.attempt, last.estimated, last.end_ns) == (
        piece.bucket,
        piece.label,
        piece.attempt,
        piece.estimated,
        piece.start_ns,
    )
    if last and same:
        pieces[-1] = Piece(last.start_ns, piece.end_ns, piece.bucket, piece.attempt, piece.label, piece.estimated)
    else:
        pieces.append(piece)
