"""The summary of the newest profile of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProfileFacts"]


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """What a profile shows of the steps."""

    session: str
