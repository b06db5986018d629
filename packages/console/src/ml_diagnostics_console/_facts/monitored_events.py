"""Findings of Google's analyzers on a run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MonitoredEvent"]


@dataclass(frozen=True, slots=True)
class MonitoredEvent:
    """One finding, quoted as theirs."""

    name: str
