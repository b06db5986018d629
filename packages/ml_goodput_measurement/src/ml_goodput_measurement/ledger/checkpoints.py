"""Saves and restores: many hosts report one operation, and it counts once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from ml_goodput_measurement.ledger.attempts import Attempts, Changes
from ml_goodput_measurement.ledger.facts import NEVER_NS, CheckpointKey, Facts
from ml_goodput_measurement.ledger.marks import Interval
from ml_goodput_measurement.ledger.overlays import Overlay

__all__ = ["CheckpointOverlays"]

_APART_NS = 60 * 10**9
"""Hosts do one operation at about the same time; reports further apart are of two."""


class CheckpointOverlays:
    """Lays an overlay for each operation, once the attempts are known."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._laid: dict[CheckpointKey, list[Overlay]] = {}

    def update(self, attempts: Attempts, changes: Changes) -> int:
        """Lays what is new, and anew what has come to lie in another attempt.

        Returns:
            The moment from which overlays changed, or `NEVER_NS`.
        """
        facts, stale = self._facts, self._facts.changed_checkpoints
        facts.changed_checkpoints = set()
        if changes.redivided:
            stale |= facts.checkpoints.keys()
        elif changes.kept < len(attempts):
            begun_ns = attempts[changes.kept].start_ns
            stale |= {key for key, reports in facts.checkpoints.items() if max(reports)[0] >= begun_ns}
        starts = [attempt.start_ns for attempt in attempts]
        return self._lay(stale, starts)

    def restore(self, attempts: Attempts) -> None:
        """Lays everything, where nothing was laid before."""
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
        """Returns an overlay an operation: it begins with the first host and lasts as long as hosts did on average."""
        return [
            Overlay.of(reports[0][0], reports[0][0] + sum(length for _, length in reports) // len(reports), key[0])
            for reports in _operations(sorted(self._facts.checkpoints[key]), starts)
        ]


def _operations(reports: Iterable[Interval], starts: list[int]) -> list[list[Interval]]:
    """Parts reports, (start, duration) in order, into those of one attempt and of about one time."""
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
