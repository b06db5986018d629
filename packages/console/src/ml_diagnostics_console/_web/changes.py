"""Changes since a version: rows by field, numbers of values of metrics, logs, and runs that are gone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Changes"]

_UNSENT: Final = frozenset({"version", "id"})
_MOST_METRICS: Final = 100
"""A page that shows a run of thousands of metrics asks for those in view anyway, once one of them has changed."""


@dataclass(slots=True, eq=False)
class _Row:
    """The newest row of a run, and the version in which each part of it changed last.

    Attributes:
        row: The row.
        fields: The versions of its fields.
        points: The numbers of values of its metrics.
        metrics: The versions of these.
        log: The version of what its companions recorded.
        changed: The greatest of all of them.
    """

    row: Mapping[str, Any] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    log: int = 0
    changed: int = 0


class Changes:
    """The versions of the rows of all runs.

    Attributes:
        version: Grows with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._epoch = secrets.token_hex(4)
        self._rows: dict[str, _Row] = {}
        self._gone: dict[str, int] = {}

    @property
    def cursor(self) -> str:
        """The version as a text that names this process, too: another one knows nothing of it."""
        return f"{self._epoch}-{self.version}"

    def row(self, run_id: str) -> Mapping[str, Any] | None:
        """Return the newest row of a run."""
        known = self._rows.get(run_id)
        return known.row if known is not None else None

    def update(self, run_id: str, row: Mapping[str, Any]) -> bool:
        """Take the row of a run; return True if a field is another than before."""
        known = self._rows.setdefault(run_id, _Row())
        changed = [
            name
            for name, value in row.items()
            if name not in _UNSENT and (name not in known.row or known.row[name] != value)
        ]
        known.row = row
        if changed:
            self._advance(known)
            known.fields.update(dict.fromkeys(changed, self.version))
            self._gone.pop(run_id, None)
        return bool(changed)

    def update_points(self, run_id: str, points: Mapping[str, int]) -> None:
        """Take the numbers of values of a run's metrics."""
        known = self._rows.setdefault(run_id, _Row())
        changed = [name for name, count in points.items() if known.points.get(name) != count]
        if changed:
            self._advance(known)
            known.points = dict(points)
            known.metrics.update(dict.fromkeys(changed, self.version))

    def update_log(self, run_id: str) -> None:
        """Note that a companion of a run has recorded something."""
        known = self._rows.get(run_id)
        if known is not None:
            self._advance(known)
            known.log = self.version

    def remove(self, run_id: str) -> None:
        """Note that a run is gone."""
        if self._rows.pop(run_id, None) is not None:
            self.version += 1
            self._gone[run_id] = self.version

    def since(self, cursor: str, now_s: float) -> dict[str, Any] | None:
        """Return what changed since a version, by the name of its event, and the new `cursor`.

        Args:
            cursor: The version.
            now_s: The time, in seconds since 1970.

        Returns:
            `changed`, `metrics`, `log` and `gone` where there is something, and `cursor`. None if the version is
            unknown: what was shown is to be read again.
        """
        epoch, _, digits = cursor.partition("-")
        if epoch != self._epoch or not (digits.isascii() and digits.isdecimal()) or int(digits) > self.version:
            return None
        version = int(digits)
        rows, metrics, logs = [], {}, []
        for run_id, known in self._rows.items():
            if known.changed <= version:
                continue
            fields = {name: known.row[name] for name, at in known.fields.items() if at > version}
            if fields:
                rows.append({"id": run_id, **fields})
            points = [name for name, at in known.metrics.items() if at > version][:_MOST_METRICS]
            if points:
                metrics[run_id] = {name: known.points[name] for name in points}
            if known.log > version:
                logs.append(run_id)
        gone = [run_id for run_id, at in self._gone.items() if at > version]
        events: dict[str, Any] = {}
        if gone:
            events["gone"] = {"ids": gone}
        if rows:
            events["changed"] = {"rows": rows, "now": now_s}
        if metrics:
            events["metrics"] = metrics
        if logs:
            events["log"] = {"id": logs[0], "ids": logs}
        return {"cursor": self.cursor, **events}

    def _advance(self, row: _Row) -> None:
        self.version += 1
        row.changed = self.version
