"""Rules: a symptom that is judged from facts alone. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console.verdict import NotChecked, Verdict

__all__ = ["Judgement", "Rule", "Threshold"]

Judgement = Verdict | NotChecked | None
"""A verdict; what is missing to judge; or None: the facts are known, and the symptom is absent."""


class Threshold(NamedTuple):
    """A number that decides, for `doctor explain`: no rule has a hidden one."""

    name: str
    value: float | str
    """With its unit, where it is a text."""
    source: str
    """The reason for this number."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; each is a module of `_rules` with its only one as `RULE`.

    Attributes:
        id: Its short name, the prefix of its class and a number: C1.
        title: Its symptom in some words.
        needs: The records that it reads, for people: where it comes from, and what to turn on to have it.
        judge: Returns the judgement of some facts; never raises.
        thresholds: The numbers that decide.
        example: A sentence of one of its verdicts.
        replaces: The ids of more general rules, the verdicts of which have less about the same failure.
    """

    id: str
    title: str
    needs: tuple[str, ...]
    judge: Callable[[Facts], Judgement]
    thresholds: tuple[Threshold, ...] = ()
    example: str = ""
    replaces: tuple[str, ...] = ()
