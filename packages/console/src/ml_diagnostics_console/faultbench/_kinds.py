"""Kinds of runs: the fault, how it is injected, what is expected of a doctor, and how the bench proves it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ml_diagnostics_console.verdict import Blame, VerdictClass

if TYPE_CHECKING:
    from ml_diagnostics_console.faultbench._evidence import Evidence

__all__ = ["At", "Check", "Culprit", "Expected", "Kind"]

Check = Callable[["Evidence"], str]
"""Returns why an injection did not have its effect; empty if it had."""


class At(str, enum.Enum):
    """The target of an injection."""

    INSIDE = "in the step"
    OUTSIDE = "from outside"
    EITHER = "in the step or from outside"
    LAUNCHER = "at the launch"
    REPLAYED = "replayed"
    NOWHERE = "nowhere"


class Culprit(str, enum.Enum):
    """The processes to blame."""

    ONE = "one"
    """One process; a doctor has to name it alone."""
    ALL = "all"
    """All alike: none has to be named."""
    NONE = "none"


@dataclass(frozen=True)
class Expected:
    """A right answer.

    Attributes:
        classes: The accepted classes of the headline; the first is the class of the run in the table.
        blames: The accepted sides to blame; empty accepts any.
        culprit: The processes to blame.
        with_blame: Further accepted pairs: any class, if the headline has this blame.
    """

    classes: tuple[VerdictClass, ...]
    blames: tuple[Blame, ...] = ()
    culprit: Culprit = Culprit.ONE
    with_blame: Blame | None = None

    @property
    def verdict_class(self) -> VerdictClass:
        """The class of the run in the table."""
        return self.classes[0]


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        name: Its name in the table.
        how: The injection as a phrase, for the table.
        expected: The right answer.
        check: Proves from outside that the injection had its effect.
        at: The target of the injection.
        is_fault: False of a negative: nothing is wrong.
        is_ending: True if a job of it ends without help, so that the time to the end of all is measured.
        least_processes: The least number of processes.
        steps_after: The number of steps that the job takes after the onset, if it goes on.
        observe_seconds: The time that the bench waits after the injection, if the processes do not end before.
        settings: Further settings of the plan.
        needs: The right that the machine has to give: `mount`, `control_group`, `network`; empty for none.
    """

    name: str
    how: str
    expected: Expected
    check: Check
    at: At = At.INSIDE
    is_fault: bool = True
    is_ending: bool = False
    least_processes: int = 2
    steps_after: int = 60
    observe_seconds: float = 11.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
