"""The score of a tool: precision and recall of each class, the right culprit, false alarms, calibration, time. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ml_diagnostics_console.faultbench._asking import Answer
from ml_diagnostics_console.faultbench._labels import Label
from ml_diagnostics_console.verdict import VerdictClass

__all__ = ["Case", "ClassScore", "Rate", "Score", "is_right_blame", "is_right_class", "is_right_culprit", "score"]

_Z: Final = 1.959964
"""The quantile of an interval of 95 %."""


class Rate(NamedTuple):
    """A share with its Wilson interval of 95 %."""

    right: int
    of: int

    @property
    def share(self) -> float | None:
        """The share; None of nothing."""
        return self.right / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        """The interval: from 0 to 1 of nothing."""
        if not self.of:
            return 0.0, 1.0
        share, of, z2 = self.right / self.of, self.of, _Z * _Z
        middle = (share + z2 / (2 * of)) / (1 + z2 / of)
        half = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
        return max(0.0, middle - half), min(1.0, middle + half)

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        low, high = self.interval
        share = None if self.share is None else round(self.share, 4)
        return {"right": self.right, "of": self.of, "share": share, "interval": [round(low, 4), round(high, 4)]}


class Case(NamedTuple):
    """A run with its label and one tool's answer."""

    name: str
    kind: str
    label: Label
    answer: Answer
    seconds: float | None = None
    """The time from the injection to the first right answer while the job ran; None if that is not known."""


@dataclass(frozen=True)
class ClassScore:
    """One class: the rates of answers that are right, and of runs that are found."""

    precision: Rate
    recall: Rate


@dataclass(frozen=True)
class Score:
    """The score of one tool.

    Attributes:
        tool: Its name.
        runs: The number of runs.
        right_class: Runs with an accepted class and side to blame, negatives included.
        by_class: The score of each class of runs with a fault.
        precision: The share of answers that something is wrong which are on runs with a fault of that class.
        recall: The share of runs with a fault that have an accepted class.
        right_culprit: The share of runs with a culprit in which it alone is named.
        false_alarms: The share of negatives in which something is reported to be wrong.
        right_blame: The share of runs with a fault and an accepted class that have an accepted side to blame.
        unknown: The share of runs without an answer.
        brier: The mean squared error of the probabilities; None if the tool gives none.
        seconds_to_verdict: The median time to the first right answer while the job ran; None if it is not known.
        confused: Pairs of the class of a run and of a wrong answer, with their number.
    """

    tool: str
    runs: int
    right_class: Rate
    by_class: dict[VerdictClass, ClassScore]
    precision: Rate
    recall: Rate
    right_culprit: Rate
    false_alarms: Rate
    right_blame: Rate
    unknown: Rate
    brier: float | None
    seconds_to_verdict: float | None
    confused: dict[tuple[str, str], int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        rates = ("right_class", "precision", "recall", "right_culprit", "false_alarms", "right_blame", "unknown")
        return {
            "tool": self.tool,
            "runs": self.runs,
            **{name: getattr(self, name).to_json() for name in rates},
            "brier": None if self.brier is None else round(self.brier, 4),
            "seconds_to_verdict": self.seconds_to_verdict,
            "classes": {
                each.value: {"precision": one.precision.to_json(), "recall": one.recall.to_json()}
                for each, one in self.by_class.items()
            },
            "confused": {f"{true} as {reported}": count for (true, reported), count in self.confused.items()},
        }


def is_right_class(label: Label, answer: Answer) -> bool:
    """Return True if the class is accepted, or the side to blame makes any class right."""
    by_blame = label.with_blame is not None and answer.blame is label.with_blame
    return answer.verdict_class in label.classes or by_blame


def is_right_culprit(label: Label, answer: Answer) -> bool:
    """Return True if the culprit alone is named."""
    return answer.culprits == (label.culprit,)


def is_right_blame(label: Label, answer: Answer) -> bool:
    """Return True if the side to blame is accepted."""
    accepted = (*label.blames, *([label.with_blame] if label.with_blame is not None else ()))
    return not label.blames or answer.blame in accepted


def score(tool: str, cases: Iterable[Case]) -> Score:
    """Return the score of a tool."""
    known = list(cases)
    faults = [case for case in known if case.label.counts_as_fault]
    negatives = [case for case in known if not case.label.counts_as_fault]
    pairs = [(_true_class(case), _answered_class(case)) for case in known]
    classes = sorted({case.label.verdict_class for case in faults}, key=list(VerdictClass).index)
    alarms = [case for case in known if _is_alarm(case)]
    culprits = [case for case in faults if case.label.culprit is not None]
    right = [case for case in faults if is_right_class(case.label, case.answer)]
    times = [case.seconds for case in known if case.seconds is not None]
    return Score(
        tool,
        len(known),
        _rate(is_right_class(case.label, case.answer) for case in known),
        {each: _class_score(each, pairs) for each in classes},
        _rate(case.label.counts_as_fault and is_right_class(case.label, case.answer) for case in alarms),
        Rate(len(right), len(faults)),
        _rate(is_right_culprit(case.label, case.answer) for case in culprits),
        _rate(_is_alarm(case) for case in negatives),
        _rate(is_right_blame(case.label, case.answer) for case in right),
        _rate(case.answer.verdict_class is VerdictClass.UNKNOWN for case in known),
        _brier(known),
        round(statistics.median(times), 2) if times else None,
        dict(Counter((true.value, reported.value) for true, reported in pairs if true is not reported).most_common()),
    )


def _is_alarm(case: Case) -> bool:
    """Return True if the answer is that something is wrong; a right answer on a negative does not count.

    "Unknown" is an alarm where nothing is wrong: the doctor exits with a code of its own. On a fault it is a miss.
    """
    if case.answer.verdict_class is VerdictClass.HEALTHY:
        return False
    if case.label.counts_as_fault:
        return case.answer.verdict_class is not VerdictClass.UNKNOWN
    return not is_right_class(case.label, case.answer)


def _true_class(case: Case) -> VerdictClass:
    return case.label.verdict_class


def _answered_class(case: Case) -> VerdictClass:
    """Return the class of the answer; an accepted one counts as the class of the run."""
    return case.label.verdict_class if is_right_class(case.label, case.answer) else case.answer.verdict_class


def _class_score(wanted: VerdictClass, pairs: Sequence[tuple[VerdictClass, VerdictClass]]) -> ClassScore:
    return ClassScore(
        _rate(true is wanted for true, reported in pairs if reported is wanted),
        _rate(reported is wanted for true, reported in pairs if true is wanted),
    )


def _rate(outcomes: Iterable[bool]) -> Rate:
    known = list(outcomes)
    return Rate(sum(known), len(known))


def _brier(cases: Sequence[Case]) -> float | None:
    """Return the mean squared error of the probability that an answer is right: class and, if one is due, culprit."""
    errors = []
    for case in cases:
        if case.answer.probability is not None:
            is_right = is_right_class(case.label, case.answer) and (
                case.label.culprit is None or is_right_culprit(case.label, case.answer)
            )
            errors.append((case.answer.probability - is_right) ** 2)
    return statistics.fmean(errors) if errors else None
