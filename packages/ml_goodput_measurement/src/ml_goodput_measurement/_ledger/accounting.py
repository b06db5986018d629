"""From runs and overlays to disjoint pieces of time, and from pieces to sums.

Saves and restores are overlays of their own: many hosts report one operation, which counts once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_goodput_measurement._ledger.facts import NEVER_NS, CheckpointKey, Facts
from ml_goodput_measurement._ledger.intervals import Interval, Overlay, resolve
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.attempts import Attempts, Changes, Run

__all__ = ["Account", "CheckpointOverlays", "Painted", "paint"]


class Painted(NamedTuple):
    """A piece of an attempt in its final bucket."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    label: str
    run: Run


@dataclass(slots=True)
class Account:
    """Sums over pieces."""

    buckets: dict[Bucket, int] = field(default_factory=dict)
    custom: dict[str, int] = field(default_factory=dict)
    estimated_ns: int = 0
    estimated_productive_ns: int = 0
    first_step_ns: int | None = None
    """Productive time of the first step; None when its length is not known."""
    steps: int = 0
    """Steps of known length, not estimated."""

    def counting(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Pass runs on and counts their steps."""
        for run in runs:
            self.steps += run.steps
            if run.first_step:
                self.first_step_ns = self.first_step_ns or 0
            yield run

    def add_pieces(self, pieces: Iterable[Painted]) -> None:
        """Add the pieces to the sums."""
        for piece in pieces:
            length = piece.end_ns - piece.start_ns
            self.buckets[piece.bucket] = self.buckets.get(piece.bucket, 0) + length
            if piece.bucket is Bucket.CUSTOM:
                self.custom[piece.label] = self.custom.get(piece.label, 0) + length
            if piece.run.estimated:
                self.estimated_ns += length
            if piece.bucket is Bucket.PRODUCTIVE:
                if piece.run.estimated:
                    self.estimated_productive_ns += length
                if piece.run.first_step:
                    self.first_step_ns = (self.first_step_ns or 0) + length

    def add(self, other: Account) -> None:
        """Add the sums of another attempt; what is of one attempt only, its first step, stays as it is."""
        for bucket, length in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + length
        for label, length in other.custom.items():
            self.custom[label] = self.custom.get(label, 0) + length
        self.estimated_ns += other.estimated_ns

    def subtract(self, other: Account) -> None:
        """Take out the sums of a part; what is of one attempt only, its first step, stays as it is."""
        for bucket, length in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) - length
        for label, length in other.custom.items():
            self.custom[label] = self.custom.get(label, 0) - length
        self.estimated_ns -= other.estimated_ns

    def copy(self) -> Account:
        """Return an account of its own with the same sums."""
        return Account(
            dict(self.buckets),
            dict(self.custom),
            self.estimated_ns,
            self.estimated_productive_ns,
            self.first_step_ns,
            self.steps,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the sums as JSON."""
        buckets = {bucket.value: length for bucket, length in self.buckets.items()}
        return {
            "buckets": buckets,
            "custom": self.custom,
            "estimated_ns": self.estimated_ns,
            "estimated_productive_ns": self.estimated_productive_ns,
            "first_step_ns": self.first_step_ns,
            "steps": self.steps,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Account:
        """Return the account that `to_state` was asked of."""
        buckets = {Bucket(name): length for name, length in state["buckets"].items()}
        return cls(**{**state, "buckets": buckets})

    def startup_ns(self) -> int:
        """Return by how much the first step took longer than the others on average: compilation and warming up."""
        others = self.steps - 1
        if self.first_step_ns is None or others < 1:
            return 0
        productive = self.buckets.get(Bucket.PRODUCTIVE, 0) - self.estimated_productive_ns
        return max(0, self.first_step_ns - (productive - self.first_step_ns) // others)

    def split_startup(self, startup_ns: int | None = None) -> None:
        """Move the startup out of the productive time; done once, when everything is in.

        Args:
            startup_ns: The startup of the attempt, where this is the account of its beginning only.
        """
        startup = self.startup_ns() if startup_ns is None else min(startup_ns, self.first_step_ns or 0)
        if startup:
            self.buckets[Bucket.PRODUCTIVE] -= startup
            self.buckets[Bucket.PROGRAM_STARTUP] = startup


def paint(runs: Iterable[Run], overlays: list[Overlay], start_ns: int, end_ns: int) -> Iterator[Painted]:
    """Lay overlays over runs.

    Args:
        runs: Contiguous, in order.
        overlays: Those that touch the stretch, in order.
        start_ns: Start of the first run.
        end_ns: End of the last run.
    """
    pieces = resolve(overlays, start_ns, end_ns)
    index = 0
    for run in runs:
        moment = run.start_ns
        while index and pieces[index - 1].end_ns > run.start_ns:
            index -= 1
        while index < len(pieces) and pieces[index].start_ns < run.end_ns:
            piece = pieces[index]
            index += 1
            if piece.rank >= run.yields_to or piece.end_ns <= moment:
                continue
            lower, end = max(piece.start_ns, moment), min(piece.end_ns, run.end_ns)
            if moment < lower:
                yield Painted(moment, lower, run.bucket, "", run)
            yield Painted(lower, end, piece.bucket, piece.label, run)
            moment = end
        if moment < run.end_ns:
            yield Painted(moment, run.end_ns, run.bucket, "", run)


_APART_NS = 60 * 10**9
"""Hosts do one operation at about the same time; reports further apart are of two."""


class CheckpointOverlays:
    """Lays an overlay for each operation, once the attempts are known."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._laid: dict[CheckpointKey, list[Overlay]] = {}

    def update(self, attempts: Attempts, changes: Changes) -> int:
        """Lay what is new, and again what is in another attempt by now.

        Returns:
            The moment from which overlays changed, or `NEVER_NS`.
        """
        facts, stale = self._facts, self._facts.changed_checkpoints
        facts.changed_checkpoints = set()
        if changes.redivided:
            stale |= facts.checkpoints.keys()
        elif changes.kept < len(attempts):
            from_ns = attempts[changes.kept].start_ns
            stale |= {key for key, reports in facts.checkpoints.items() if max(reports)[0] >= from_ns}
        starts = [attempt.start_ns for attempt in attempts]
        return self._lay(stale, starts)

    def restore(self, attempts: Attempts) -> None:
        """Lay everything, where nothing was laid before."""
        starts = [attempt.start_ns for attempt in attempts]
        self._laid = {key: self._overlays(key, starts) for key in self._facts.checkpoints}
        self._facts.changed_checkpoints = set()
        self._facts.overlays.extend(overlay for overlays in self._laid.values() for overlay in overlays)

    def _lay(self, keys: Iterable[CheckpointKey], starts: list[int]) -> int:
        added: list[Overlay] = []
        changed_ns = NEVER_NS
        for key in keys:
            old, new = self._laid.get(key, []), self._overlays(key, starts)
            if old == new:
                continue
            for overlay in old:
                self._facts.overlays.discard(overlay)
            added += new
            self._laid[key] = new
            changed_ns = min([changed_ns, *(overlay.start_ns for overlay in {*old} ^ {*new})])
        self._facts.overlays.extend(added)
        return changed_ns

    def _overlays(self, key: CheckpointKey, starts: list[int]) -> list[Overlay]:
        """Return an overlay an operation: it starts with the first host and lasts as long as hosts did on average."""
        return [
            Overlay.of(reports[0][0], reports[0][0] + sum(length for _, length in reports) // len(reports), key[0])
            for reports in _operations(sorted(self._facts.checkpoints[key]), starts)
        ]


def _operations(reports: Iterable[Interval], starts: list[int]) -> list[list[Interval]]:
    """Part reports, (start, duration) in order, into those of one attempt and of about one time."""
    operations: list[list[Interval]] = []
    for report in reports:
        last = operations[-1][-1] if operations else None
        if (
            last is None
            or report[0] - last[0] > _APART_NS
            or bisect_right(starts, report[0]) != bisect_right(starts, last[0])
        ):
            operations.append([])
        operations[-1].append(report)
    return operations
