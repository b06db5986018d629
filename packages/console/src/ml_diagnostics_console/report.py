"""The report of the doctor on one job, also as text: at most a screen, 80 columns wide, the answer first. Pure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ml_diagnostics_common.command.console import BOLD, GREEN, RED, YELLOW
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.texts import format_count, format_duration, one_line

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console.verdict import (
    EXIT_CODES,
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Verdict,
    VerdictClass,
)

__all__ = ["BLAMES", "STYLES", "TITLES", "Report", "format_cost", "format_report", "format_verdict", "title_of"]

TITLES: Final[Mapping[VerdictClass, str]] = {
    VerdictClass.WAITING: "Waiting",
    VerdictClass.BEFORE_START: "Failed before the first step",
    VerdictClass.CRASH: "Failed",
    VerdictClass.STUCK: "Stuck",
    VerdictClass.SLOW: "Slow",
    VerdictClass.NUMBERS: "Wrong numbers",
    VerdictClass.RESTARTS: "Restarts",
    VerdictClass.HEALTHY: "",
    VerdictClass.UNKNOWN: "Unknown",
}
"""The start of a sentence; empty where the sentence is complete."""
STYLES: Final[Mapping[str, str]] = {
    r"^(?:Failed|Failed before the first step|Stuck|Wrong numbers|Restarts)(?=:)": f"{BOLD};{RED}",
    r"^(?:Waiting|Slow|Unknown)(?=:)": f"{BOLD};{YELLOW}",
    r"^Nothing is wrong": f"{BOLD};{GREEN}",
    r"^ +(?:proof|cost|blame|next|also|explain)(?= )": BOLD,
}
"""The style of each match, on a terminal with colors."""
_WIDTH: Final = 80
_MOST_WIDTH: Final = 120
_PROOFS: Final = 3
_NOT_CHECKED: Final = 2
_LABEL: Final = 10


@dataclass(frozen=True)
class Report:
    """The report of the doctor on one job.

    Attributes:
        facts: The facts that it was judged from.
        verdicts: All verdicts in their order.
        shown: The ones that count: the headline, and at most four that add to it.
        not_checked: The rules that could not be judged, and what is missing.
        observations: Sentences on the records themselves: lost entries, silent logs, clocks that differ.
    """

    facts: Facts
    verdicts: tuple[Verdict, ...]
    shown: tuple[Verdict, ...]
    not_checked: tuple[NotChecked, ...]
    observations: tuple[str, ...]

    @property
    def headline(self) -> Verdict:
        """The first verdict."""
        return self.shown[0] if self.shown else _nothing_known(self.facts)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if nothing is wrong, else by the class of the headline."""
        return EXIT_CODES[self.headline.verdict_class]

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON: what `--format json` prints."""
        facts = self.facts
        return {
            "run": facts.name,
            "job": facts.display_name,
            "attempt": facts.attempt.number if facts.attempt is not None else None,
            "attempts": len(facts.attempts),
            "is_live": facts.is_live,
            "as_of": format_timestamp(facts.now_ns),
            "entries": facts.entry_count,
            "headline": self.headline.to_json(),
            "exit_code": self.exit_code,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "not_checked": [each.to_json() for each in self.not_checked],
            "observations": list(self.observations),
        }

    def __str__(self) -> str:
        return format_report(self)


def _nothing_known(facts: Facts) -> Verdict:
    """Return the verdict on a job of which no rule shows anything."""
    return Verdict(
        rule="U0",
        verdict_class=VerdictClass.UNKNOWN,
        sentence=f"{facts.name} has recorded nothing that shows if something is wrong",
        blame=None,
        confidence=Confidence.POSSIBLE,
    )


def format_report(report: Report, width: int | None = None, *, with_all: bool = False) -> str:
    """Return a report as text.

    Args:
        report: The report.
        width: The columns of the terminal; None if there is no limit: then lines have 80.
        with_all: True for all verdicts and all that was not checked.
    """
    columns = _WIDTH if width is None else max(40, min(width, _MOST_WIDTH))
    headline = report.headline
    lines = format_verdict(headline, columns, report.facts)
    others = report.verdicts if with_all else report.shown
    for number, verdict in enumerate((each for each in others if each is not headline), 2):
        lines += _wrapped(f"also {number}", _sentence(verdict, report.facts), columns)
        if with_all:
            lines += _details(verdict, columns)
    lines += _not_checked(report, columns, with_all=with_all)
    for text in report.observations if with_all else report.observations[:_NOT_CHECKED]:
        lines += _wrapped("note", text, columns)
    if headline.evidence:
        lines += _wrapped("explain", f"mldiagnostics doctor explain {report.facts.name}/1", columns)
    return "\n".join(lines)


def format_verdict(verdict: Verdict, width: int, facts: Facts | None = None) -> list[str]:
    """Return a verdict as lines: the sentence, its proof, its cost, the side that has to act, and what to do.

    Args:
        verdict: The verdict.
        width: The columns of the terminal.
        facts: The facts of the job; None for one that did not start.
    """
    return [*_fill(_sentence(verdict, facts), width, "", "  "), *_details(verdict, width)]


def title_of(verdict: Verdict, facts: Facts | None) -> str:
    """Return the start of a verdict's sentence; empty if it is complete.

    Hosts that differ are of the class before_start, also in a job that made steps; step 0 may be in flight.
    """
    attempt = facts.attempt if facts is not None else None
    if verdict.verdict_class is VerdictClass.BEFORE_START and attempt is not None and attempt.best_step:
        return ""
    return TITLES[verdict.verdict_class]


def _details(verdict: Verdict, width: int) -> list[str]:
    lines = []
    proofs = dict.fromkeys(
        f"{ref.host}: {ref.shows}" if ref.host and ref.host not in ref.shows else ref.shows for ref in verdict.evidence
    )
    for text in itertools.islice(proofs, _PROOFS):
        lines += _wrapped("proof", text, width)
    if verdict.cost is not None and verdict.cost.seconds > 0:
        lines += _wrapped("cost", format_cost(verdict.cost), width)
    if verdict.blame is not None and verdict.blame is not Blame.UNKNOWN:
        lines += _wrapped("blame", BLAMES[verdict.blame], width)
    for command in verdict.next:
        lines += _command(command, width)
    return lines


def _command(command: NextCommand, width: int) -> list[str]:
    """Return what to do: the command whole, so that it can be copied, and the reason beside or below it."""
    if not command.command:
        return _wrapped("next", command.why, width)
    first, *more = command.command.splitlines()
    line = "  next".ljust(_LABEL) + one_line(first)
    rest = [" " * _LABEL + one_line(text) for text in more]
    why = one_line(f"why: {command.why}")
    if not rest and len(line) + 3 + len(why) <= width:
        return [f"{line}   {why}"]
    return [line, *rest, *_fill(why, width, " " * (_LABEL + 2), " " * (_LABEL + 2))]


BLAMES: Final[Mapping[Blame, str]] = {
    Blame.USER: "the program or its configuration",
    Blame.SYSTEM: "the machine, the network or the cluster",
    Blame.PREEMPTION: "a preemption: the job was asked to free its machines",
}


def _sentence(verdict: Verdict, facts: Facts | None) -> str:
    title = title_of(verdict, facts)
    text = f"{title}: {verdict.sentence}" if title else f"{verdict.sentence[:1].upper()}{verdict.sentence[1:]}"
    mark = "" if verdict.verdict_class is VerdictClass.HEALTHY else f"   [{verdict.confidence.value}]"
    return f"{text.rstrip('.')}.{mark}"


def format_cost(cost: Cost) -> str:
    """Return a cost: `1 h 12 min, 307 chip-hours`, with `at least` where it is a lower bound."""
    least = "at least " if cost.basis is CostBasis.LOWER_BOUND else ""
    chips = "" if cost.chip_hours is None else f", {cost.chip_hours:,.3g} chip-hours"
    shows = f" {cost.shows}" if cost.shows else ""
    return f"{least}{format_duration(cost.seconds)}{shows}{chips}"


def _not_checked(report: Report, width: int, *, with_all: bool) -> list[str]:
    """Return what was not checked, equal reasons once: by default only of the headline's kind."""
    prefix = report.headline.rule[:1]
    by_reason: dict[str, list[NotChecked]] = {}
    for each in sorted(report.not_checked):
        by_reason.setdefault(each.why, []).append(each)
    of_kind = [
        (why, rules)
        for why, rules in by_reason.items()
        if any(each.rule.startswith(prefix) for each in rules) and not rules[0].is_by_choice
    ]
    kept = list(by_reason.items()) if with_all else of_kind[:_NOT_CHECKED]
    lines: list[str] = []
    for why, rules in kept:
        ids = ", ".join(each.rule for each in rules)
        lines += _fill(f"not checked: {why} ({ids})", width, "  ", "    ")
    left = sum(map(len, by_reason.values())) - sum(len(rules) for _, rules in kept)
    if left:
        lines += _fill(
            f"not checked: {format_count(left, 'rule' if not kept else 'more rule')}; --all lists them",
            width,
            "  ",
            "    ",
        )
    return lines


def _wrapped(label: str, text: str, width: int) -> list[str]:
    start = f"  {label}".ljust(_LABEL)
    return _fill(text, width, start, " " * _LABEL)


def _fill(text: str, width: int, first: str, further: str) -> list[str]:
    return textwrap.wrap(
        one_line(text),  # Texts of the job must not control a terminal, as `print` of a report would let them.
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
