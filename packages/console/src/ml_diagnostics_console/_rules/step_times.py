"""The steps of all hosts, by their summaries: shares of a step, and hosts with more own time than the others. Pure.

All hosts of a job have equal steps, since each waits for the slowest in a collective. What differs is a host's own
time: all but its wait for the devices. Measured with a delay of 50 ms a step on one host: own time 57 ms there and 6 on
the others, wait 1.5 ms there and 54. The first summary of a process is left out if there are others, since its steps
compile; medians of steps do not need that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from ml_diagnostics_common.story import Role

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts, StepSummary
from ml_diagnostics_console._rules.stuck import stuck_job
from ml_diagnostics_console.verdict import Part

__all__ = ["MARKS", "SUMMARIES", "Lateness", "late_processes", "part_of", "share_of_data", "steady", "step_seconds"]

MARKS: Final = 'mark the wait for the devices: diagnostic.heartbeat(step, phase="sync") before the loop blocks'
SUMMARIES: Final = (
    "no step summaries: wrap the training in cloud_tpu_diagnostics.diagnose() on each host, and report steps by "
    "diagnostic.heartbeat(step) or a GoodputRecorder"
)
_MOST_ROWS: Final = 512
"""The last 85 minutes, at 10 s a row."""
_WITH_FIRST: Final = 2


def part_of(facts: Facts) -> Part:
    """Return the part of slowness: what a job that has failed, or is stuck, also suffered from."""
    attempt = facts.attempt
    has_failed = attempt is not None and any(role not in (Role.NONE, Role.CLEAN) for role in attempt.story.roles)
    return Part.CONTRIBUTING if has_failed or stuck_job(facts) is not None else Part.INITIATING


def steady(process: ProcessFacts, most: int = _MOST_ROWS) -> Sequence[StepSummary]:
    """Return the last summaries of a process, without the first one if there are enough."""
    count = len(process.summaries)
    return process.summaries[max(1 if count > _WITH_FIRST else 0, count - most) :]


def step_seconds(summaries: Sequence[StepSummary]) -> float:
    """Return the mean duration of a step; 0 without steps."""
    steps = sum(summary.steps for summary in summaries)
    return sum(summary.wall.sum for summary in summaries) / steps if steps else 0.0


def share_of_data(summaries: Sequence[StepSummary]) -> float | None:
    """Return the share of data loading in the steps, 0 to 1; None if it is not marked."""
    wall = sum(summary.wall.sum for summary in summaries)
    if not wall or all(summary.data is None for summary in summaries):
        return None
    return sum(summary.data.sum for summary in summaries if summary.data is not None) / wall


class Lateness(NamedTuple):
    """A process with more own time than the others in many steps in a row."""

    process: ProcessFacts
    steps: int
    first_step: int
    last_step: int
    excess_seconds: float
    """The own time of a step less the median of the others'."""
    step_seconds: float
    data_seconds: float
    """The part of the excess that is data loading."""
    compile_seconds: float
    """The part of the excess that is compilation."""
    lasts: bool
    """True if it lasts to the newest step."""
    summary: StepSummary
    """The newest one of it."""
    other: StepSummary
    """One of another process for the same steps."""

    @property
    def share(self) -> float:
        """The excess as a share of the step."""
        return self.excess_seconds / self.step_seconds if self.step_seconds else 0.0


@dataclass
class _Run:
    """Rows in a row in which one process was late."""

    rows: list[tuple[StepSummary, StepSummary, float, float]] = field(default_factory=list)
    """Its summary, another's, the excess of a step, and the part of data in it."""
    last_row: int = -1


def late_processes(processes: Sequence[ProcessFacts], *, least_share: float, least_steps: int) -> list[Lateness]:
    """Return the processes that were late for long enough, the worst first.

    Args:
        processes: All processes of the job.
        least_share: The least excess, as a share of the step.
        least_steps: The least number of steps in a row.
    """
    rows = _rows(processes)
    open_runs: dict[int, _Run] = {}
    best: dict[int, _Run] = {}
    for number, row in enumerate(rows):
        late = _late(row, least_share)
        for index in open_runs.keys() & row.keys() - late.keys():
            del open_runs[index]
        for index, (seconds, data, other) in late.items():
            run = open_runs.setdefault(index, _Run())
            run.rows.append((row[index], other, seconds, data))
            run.last_row = number
            if index not in best or _steps(run) >= _steps(best[index]):
                best[index] = run
    found = [
        _lateness(processes[index], run, lasts=run.last_row >= len(rows) - 2)
        for index, run in best.items()
        if _steps(run) >= least_steps
    ]
    return sorted(found, key=lambda late: -late.share * late.steps)


def _rows(processes: Sequence[ProcessFacts]) -> list[dict[int, StepSummary]]:
    """Return the summaries with own times of the same steps, by process: those of the first process make the rows."""
    own = {
        index: [summary for summary in steady(process) if summary.own is not None and summary.steps > 0]
        for index, process in enumerate(processes)
    }
    own = {index: summaries for index, summaries in own.items() if summaries}
    if len(own) < 2:
        return []
    first = max(own, key=lambda index: len(own[index]))
    starts = [summary.first_step for summary in own[first]]
    rows: list[dict[int, StepSummary]] = [{first: summary} for summary in own[first]]
    for index, summaries in own.items():
        if index == first:
            continue
        for summary in summaries:
            position = bisect_right(starts, (summary.first_step + summary.last_step) // 2) - 1
            if 0 <= position < len(rows):
                rows[position][index] = summary
    return [row for row in rows if len(row) > 1]


def _late(row: dict[int, StepSummary], least_share: float) -> dict[int, tuple[float, float, StepSummary]]:
    """Return the processes that are late in these steps: the excess of a step, the part of data, and another's summary.

    The excess is the own time less the median of the others'.
    """
    ordered = sorted(row, key=lambda index: _own(row[index]))
    least = least_share * median(summary.wall.sum / summary.steps for summary in row.values())
    found: dict[int, tuple[float, float, StepSummary]] = {}
    # No median of others is less than this one, so that in most rows no process needs to be compared.
    if least <= 0 or _own(row[ordered[-1]]) - _own(row[ordered[(len(ordered) - 2) // 2]]) < least:
        return found
    for position, index in enumerate(ordered):
        # The median of the others, without sorting them again: the two in the middle of the rest.
        middle = [_without(ordered, position, rank) for rank in ((len(ordered) - 2) // 2, (len(ordered) - 1) // 2)]
        excess = _own(row[index]) - sum(_own(row[other]) for other in middle) / 2
        if excess >= least:
            data = _data(row[index]) - median(_data(row[other]) for other in row if other != index)
            found[index] = excess, max(0.0, data), row[middle[0]]
    return found


def _without(ordered: Sequence[int], left_out: int, rank: int) -> int:
    """Return the item at a rank, one being left out."""
    return ordered[rank if rank < left_out else rank + 1]


def _own(summary: StepSummary) -> float:
    return summary.own.p50 if summary.own is not None else 0.0


def _data(summary: StepSummary) -> float:
    return summary.data.p50 if summary.data is not None else 0.0


def _steps(run: _Run) -> int:
    return sum(summary.steps for summary, _, _, _ in run.rows)


def _lateness(process: ProcessFacts, run: _Run, *, lasts: bool) -> Lateness:
    steps = _steps(run)
    newest, other, _, _ = run.rows[-1]
    first = run.rows[0][0]
    compiled = sum(
        batch.seconds
        for batch in process.compiles
        if first.time_ns - 10**10 <= batch.time_ns <= newest.time_ns + 10**10
    )
    return Lateness(
        process=process,
        steps=steps,
        first_step=first.first_step,
        last_step=newest.last_step,
        excess_seconds=sum(excess * summary.steps for summary, _, excess, _ in run.rows) / steps,
        step_seconds=step_seconds([summary for summary, _, _, _ in run.rows]),
        data_seconds=sum(data * summary.steps for summary, _, _, data in run.rows) / steps,
        compile_seconds=compiled / steps,
        lasts=lasts,
        summary=newest,
        other=other,
    )
