"""The steps of a job, summarised every ten seconds from its progress page, at no cost for the job. Pure.

A step lasts from its mark to the next step's. Of that, `data` is spent in the phase of that name, and `wait` from the
mark `sync`, with which a loop reports that it waits for the devices now, to whatever it does next. The rest is the
host's own time: in a job of many hosts, all have equal steps, and only the slow one has a long time of its own.

A step in which the job saves or evaluates does not count, since its time is not that of a step. How often it does so,
and how long that takes, is in `pauses`.

The return from a wait is a clock that all hosts share: a collective ends everywhere together. So the summary has the
times of some returns, on the host's clock, with their steps: by `entries.return_rank`, so that all hosts select returns
of the same steps, though each begins its ten seconds at another time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappush, heappushpop
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.progress import Progress

from cloud_tpu_diagnostics.entries import MOST_RETURNS, STEP_SUMMARY, entry, return_rank

__all__ = ["INTERVAL_SECONDS", "StepSummaries"]

INTERVAL_SECONDS: Final = 10.0
_MOST_STEPS: Final = 20_000
_AFTER_A_WAIT: Final = frozenset({"step", "data", "checkpoint", "eval"})
"""Not `ended`: an exception ends a wait on each host at another time."""
_WITHIN_STEPS: Final = frozenset({"step", "data", "sync"})
_PAUSES: Final = frozenset({"checkpoint", "eval"})


class _Step(NamedTuple):
    number: int
    wall_ns: int
    data_ns: int
    wait_ns: int


class StepSummaries:
    """The steps since the last summary.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._next_summary = now + INTERVAL_SECONDS
        self._open: Progress | None = None
        """The mark of the step that runs; None if it is not to be counted."""
        self._last: Progress | None = None
        self._data_ns = self._wait_ns = 0
        self._steps: list[_Step] = []
        self._has_sync = False
        self._is_in_pause = False
        """True if the last two reports were of one save, or one evaluation."""
        self._lost_marks = 0
        self._pauses_ns: dict[str, list[int]] = {}
        """The durations of saves and evaluations, by phase; each until the next report of another phase."""
        self._returns: list[tuple[int, int, int]] = []
        """A heap of the first returns from waits in a step: the rank, negative, the step, and the monotonic time."""
        self._returned_step: int | None = None

    def add(self, states: Iterable[Progress], lost: int) -> None:
        """Add what the job has published since.

        Args:
            states: The states, in their order.
            lost: The number of those that were overwritten before they were read.
        """
        self._lost_marks += lost
        if lost:
            self._open = self._last = None
        for state in states:
            self._add(state)
            self._last = state

    def take(self, now: float, wall_offset_ns: int, *, is_last: bool = False) -> dict[str, Any] | None:
        """Return the entry, if it is due and a step was completed; None otherwise.

        Args:
            now: Monotonic seconds.
            wall_offset_ns: The host's wall clock less its monotonic clock.
            is_last: True if the block has ended: whatever was completed is due.
        """
        if now < self._next_summary and not is_last:
            return None
        self._next_summary = now + INTERVAL_SECONDS
        steps, self._steps = self._steps, []
        lost, self._lost_marks = self._lost_marks, 0
        if not steps:
            return None
        returns, self._returns = sorted(self._returns, reverse=True), []
        pauses, self._pauses_ns = self._pauses_ns, {}
        fields: dict[str, Any] = {
            "first_step": steps[0].number,
            "last_step": steps[-1].number,
            "count": len(steps),
            "wall_seconds": _summary([step.wall_ns for step in steps]),
        }
        if any(step.data_ns for step in steps):
            fields["data_seconds"] = _summary([step.data_ns for step in steps])
        if self._has_sync:
            fields["own_seconds"] = _summary([step.wall_ns - step.wait_ns for step in steps])
            fields["wait_seconds"] = _summary([step.wait_ns for step in steps])
        if returns:
            (step, time_ns), *others = ((step, time_ns + wall_offset_ns) for _, step, time_ns in returns)
            fields |= {"return_step": step, "return_ns": time_ns}
            if others:
                fields["returns"] = [list(each) for each in others]
        if lost:
            fields["lost_marks"] = lost
        if pauses:
            fields["pauses"] = {phase: _pause(durations_ns) for phase, durations_ns in pauses.items()}
        middle = fields["wall_seconds"]["p50"]
        text = f"{len(steps)} steps, {steps[0].number} to {steps[-1].number}, of {middle:.3g} s"
        return entry(STEP_SUMMARY, text, **fields)

    def _add(self, state: Progress) -> None:
        started, last = self._open, self._last
        if started is not None and last is not None:
            since_last_ns = state.monotonic_ns - last.monotonic_ns
            if last.phase == "data":
                self._data_ns += since_last_ns
            elif last.phase == "sync":
                self._wait_ns += since_last_ns
                if started.step is not None and state.phase in _AFTER_A_WAIT:
                    self._add_return(started.step, state.monotonic_ns)
        if last is not None and last.phase in _PAUSES:
            self._add_pause(last.phase, state.monotonic_ns - last.monotonic_ns, is_same=self._is_in_pause)
        self._is_in_pause = last is not None and last.phase in _PAUSES and state.phase == last.phase
        if state.phase == "step" and state.step is not None and (started is None or state.step != started.step):
            self._complete(state)
            self._open, self._data_ns, self._wait_ns = state, 0, 0
        elif state.phase == "sync":
            self._has_sync = True
        elif state.phase not in _WITHIN_STEPS:
            self._open = None  # A save, an evaluation, a compilation: not the time of a step.

    def _add_return(self, step: int, time_ns: int) -> None:
        if step == self._returned_step:  # A further wait of the step: the first one is that of each host.
            return
        self._returned_step = step
        returned = -return_rank(step), step, time_ns
        if len(self._returns) < MOST_RETURNS:
            heappush(self._returns, returned)
        else:
            heappushpop(self._returns, returned)

    def _add_pause(self, phase: str, duration_ns: int, *, is_same: bool) -> None:
        durations_ns = self._pauses_ns.setdefault(phase, [])
        if is_same and durations_ns:
            durations_ns[-1] += duration_ns
        elif len(durations_ns) < _MOST_STEPS:
            durations_ns.append(duration_ns)

    def _complete(self, following: Progress) -> None:
        started = self._open
        if started is None or started.step is None or len(self._steps) >= _MOST_STEPS:
            return
        wall_ns = following.monotonic_ns - started.monotonic_ns
        self._steps.append(_Step(started.step, wall_ns, self._data_ns, self._wait_ns))


def _pause(durations_ns: Sequence[int]) -> dict[str, float]:
    """Return how many pauses there were, and the sum and the longest of them, in seconds."""
    return {
        "count": len(durations_ns),
        "sum": round(sum(durations_ns) / 1e9, 6),
        "max": round(max(durations_ns) / 1e9, 6),
    }


def _summary(durations_ns: Sequence[int]) -> dict[str, float]:
    """Return the sum, the median, the 95th percentile (nearest rank) and the longest of durations, in seconds."""
    ordered = sorted(durations_ns)
    ranks = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    found = {name: ordered[max(0, math.ceil(rank * len(ordered)) - 1)] for name, rank in ranks.items()}
    return {name: round(value / 1e9, 6) for name, value in {"sum": sum(ordered), **found}.items()}
