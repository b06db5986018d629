"""Labels of runs: class, blame, culprit, onset, and the processes that fail in consequence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_console.faultbench._kinds import Culprit
from ml_diagnostics_console.faultbench._plans import KINDS, Plan
from ml_diagnostics_console.verdict import Blame, VerdictClass

__all__ = ["Label", "label_of", "twin_of"]


@dataclass(frozen=True)
class Label:
    """The truth of a run.

    Attributes:
        classes: The accepted classes; the first is that of the table.
        blames: The accepted sides to blame; empty accepts any.
        with_blame: Any class is accepted with this blame; None for no such exception.
        culprit: The index of the process to name; None if none has to be named.
        step: The step of the onset; None before the first step.
        cascade: The processes that fail, or wait, because of the culprit.
        is_fault: False if nothing is wrong.
    """

    classes: tuple[VerdictClass, ...]
    blames: tuple[Blame, ...] = ()
    with_blame: Blame | None = None
    culprit: int | None = None
    step: int | None = None
    cascade: tuple[int, ...] = ()
    is_fault: bool = True

    @property
    def counts_as_fault(self) -> bool:
        """True if something is wrong; a fault that the job survives, where "healthy" is right, counts as a negative."""
        return self.is_fault and VerdictClass.HEALTHY not in self.classes

    @property
    def verdict_class(self) -> VerdictClass:
        """The class of the run in the table."""
        return self.classes[0]

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        return {
            "classes": [each.value for each in self.classes],
            "blames": [each.value for each in self.blames],
            "with_blame": None if self.with_blame is None else self.with_blame.value,
            "culprit": self.culprit,
            "step": self.step,
            "cascade": list(self.cascade),
            "is_fault": self.is_fault,
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Label:
        """Return what `to_json` has written."""
        blame = encoded["with_blame"]
        return cls(
            tuple(map(VerdictClass, encoded["classes"])),
            tuple(map(Blame, encoded["blames"])),
            None if blame is None else Blame(blame),
            encoded["culprit"],
            encoded["step"],
            tuple(encoded["cascade"]),
            encoded["is_fault"],
        )


def label_of(plan: Plan, *, step: int | None = None) -> Label:
    """Return the label of a plan.

    Args:
        plan: The plan.
        step: The step of the injection, where the trainer has reported it.
    """
    kind = KINDS[plan.kind]
    expected = kind.expected
    culprit = plan.culprit if expected.culprit is Culprit.ONE else None
    if plan.kind == "index_twice":
        culprit = twin_of(plan)
    onset = plan.step if step is None else step
    is_ending = kind.is_fault and expected.culprit is Culprit.ONE
    return Label(
        expected.classes,
        expected.blames,
        expected.with_blame,
        culprit,
        onset if onset >= 0 and kind.is_fault else None,
        tuple(index for index in range(plan.processes) if index != plan.culprit) if is_ending else (),
        kind.is_fault,
    )


def twin_of(plan: Plan) -> int:
    """Return the index that two processes have, where a process has another's in place of its own."""
    return next(index for index in reversed(range(plan.processes)) if index != plan.culprit)
