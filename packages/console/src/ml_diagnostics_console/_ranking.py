"""Rank verdicts: costs in chip-hours, repetitions of another verdict, and the order. Pure.

Order: part, kind, confidence, cost, earliness. A verdict that another, more specific rule makes redundant is not shown
by default, and neither are cascades and teardowns: there is one story in the headline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import Fact, Facts
from ml_diagnostics_console._rules.rule import Rule
from ml_diagnostics_console.verdict import Part, Verdict, VerdictClass

__all__ = ["MOST_SHOWN", "rank", "reason_of_order", "shown"]

MOST_SHOWN: Final = 5
_PARTS: Final = (Part.INITIATING, Part.CONTRIBUTING, Part.CASCADE, Part.TEARDOWN)
_CLASSES: Final[Mapping[VerdictClass, int]] = {
    VerdictClass.RESTARTS: 0,
    VerdictClass.CRASH: 0,
    VerdictClass.BEFORE_START: 0,
    VerdictClass.WAITING: 0,
    VerdictClass.STUCK: 0,
    VerdictClass.NUMBERS: 1,
    VerdictClass.SLOW: 2,
    VerdictClass.HEALTHY: 3,
    VerdictClass.UNKNOWN: 4,
}
"""A job that has failed is not first of all slow."""
_CONFIDENCES: Final = (Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE)
_SECONDS_IN_HOUR: Final = 3_600


def rank(facts: Facts, verdicts: Iterable[Verdict], rules: Sequence[Rule]) -> tuple[Verdict, ...]:
    """Return all verdicts in their order, with costs in chip-hours.

    Args:
        facts: The facts that they were judged from.
        verdicts: One for each rule at most.
        rules: The rules.
    """
    priced = [_priced(verdict, facts) for verdict in verdicts]
    replaced = _replaced(priced, rules)
    parted = [
        replace(verdict, part=Part.CONTRIBUTING)
        if verdict.rule in replaced and verdict.part is Part.INITIATING
        else verdict
        for verdict in priced
    ]
    return tuple(sorted(parted, key=_key))


def shown(verdicts: Sequence[Verdict], rules: Sequence[Rule]) -> tuple[Verdict, ...]:
    """Return the verdicts that are shown by default: the headline, and at most four that add to it.

    Args:
        verdicts: The result of `rank`.
        rules: The rules.
    """
    replaced = _replaced(verdicts, rules)
    own = [verdict for verdict in verdicts if verdict.part in _PARTS[:2] and verdict.rule not in replaced]
    wrong = [verdict for verdict in own if verdict.verdict_class is not VerdictClass.HEALTHY]
    return tuple((wrong or own)[:MOST_SHOWN])


def reason_of_order(first: Verdict, second: Verdict, rules: Sequence[Rule]) -> str:
    """Return why a verdict is before another one in `rank`: the first criterion in which they differ.

    Args:
        first: The verdict that is ranked higher.
        second: The other one.
        rules: The rules.
    """
    rule = next((each for each in rules if each.id == first.rule), None)
    if rule is not None and second.rule in rule.replaces:
        return f"{first.rule} shows more of the same failure than {second.rule}"
    if first.part is not second.part:
        return f"{first.rule} is {first.part.value}, {second.rule} {second.part.value}"
    if _CLASSES[first.verdict_class] != _CLASSES[second.verdict_class]:
        return f"{first.verdict_class.value} is before {second.verdict_class.value}"
    if first.confidence is not second.confidence:
        return f"{first.rule} is {first.confidence.value}, {second.rule} {second.confidence.value}"
    costs = [each.cost.seconds if each.cost is not None else 0.0 for each in (first, second)]
    if costs[0] != costs[1]:
        return f"{first.rule} costs more: {format_duration(costs[0])}, {second.rule} {format_duration(costs[1])}"
    if first.since_ns != second.since_ns:
        return f"{first.rule} started earlier"
    return "they differ in nothing that is ranked: the order is that of the rules"


def _replaced(verdicts: Iterable[Verdict], rules: Sequence[Rule]) -> set[str]:
    """Return the ids of rules with verdicts that repeat what that of a more specific rule shows.

    A mere possibility replaces nothing that is known better. That something unknown is wrong is reported only where no
    verdict on the state of the job explains it.
    """
    by_id = {rule.id: rule for rule in rules}
    found = {verdict.rule: verdict for verdict in verdicts}
    is_explained = any(
        verdict.part is Part.INITIATING and _CLASSES[verdict.verdict_class] == 0 for verdict in found.values()
    )
    unknown = {verdict.rule for verdict in found.values() if verdict.verdict_class is VerdictClass.UNKNOWN}
    return (unknown if is_explained else set()) | {
        general
        for verdict in found.values()
        if verdict.part in _PARTS[:2] and verdict.rule in by_id
        for general in by_id[verdict.rule].replaces
        if general in found
        and (verdict.confidence is not Confidence.POSSIBLE or found[general].confidence is Confidence.POSSIBLE)
    }


def _priced(verdict: Verdict, facts: Facts) -> Verdict:
    cost = verdict.cost
    if cost is None or cost.chip_hours is not None or not isinstance(facts.chips, Fact):
        return verdict
    chip_hours = cost.seconds * facts.chips.value / _SECONDS_IN_HOUR
    return replace(verdict, cost=replace(cost, chip_hours=chip_hours))


def _key(verdict: Verdict) -> tuple[int, int, int, float, int, str]:
    cost = verdict.cost.seconds if verdict.cost is not None else 0.0
    return (
        _PARTS.index(verdict.part),
        _CLASSES[verdict.verdict_class],
        _CONFIDENCES.index(verdict.confidence),
        -cost,
        verdict.since_ns if verdict.since_ns is not None else 2**63,
        verdict.rule,
    )
