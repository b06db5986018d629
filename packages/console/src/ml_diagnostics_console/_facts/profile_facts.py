"""The summary of the newest profile of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ProfileFacts"]


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """The steps of a profile, and what limits them.

    Attributes:
        session: Its name.
        device: The kind of device.
        steps: The number of steps in it.
        step_seconds: The mean duration of a step; None without steps.
        idle_percent: The time in which the devices did nothing; None if it is not known.
        input_percent: The mean share of a step that waits for input; None if XProf did not measure it.
        cause: The largest part of the steps' time, as a sentence; empty if the profile does not show it.
        slow_host: The host that is slower than the others; empty if there is none.
        compile_percent: The share of compilation in the steps' time; None if there was none.
        operations: The slowest operations and their shares in percent.
        notes: XProf's own warnings and suggestions.
    """

    session: str
    device: str = ""
    steps: int = 0
    step_seconds: float | None = None
    idle_percent: float | None = None
    input_percent: float | None = None
    cause: str = ""
    slow_host: str = ""
    compile_percent: float | None = None
    operations: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()
