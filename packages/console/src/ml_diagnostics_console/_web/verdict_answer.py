"""A verdict as the page has it: data that a process of its own can send. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.entry import split_insert_id
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._web.sentences import marked, safe_line

if TYPE_CHECKING:
    from ml_diagnostics_console.report import Report

__all__ = ["Judged", "answer_of", "judged", "not_judged", "without_verdict"]

_PROOFS: Final = 5
_LONGEST_PROOF: Final = 400
_NO_VERDICT: Final[dict[str, Any]] = {
    "state": "ready",
    "sentence": None,
    "parts": [],
    "proofs": [],
    "next": [],
    "also": [],
    "not_checked": [],
}


@dataclass(frozen=True, slots=True)
class Judged:
    """The part of a report that the page keeps.

    Attributes:
        answer: The answer of its route.
        evidence: The ids of the entries, files and objects that prove the headline, in the order of its proofs.
        reports: The doctor's part of a case file: see `case_report`; empty where none was asked for.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    reports: str = ""


def judged(report: Report, reports: str = "") -> Judged:
    """Return what the page keeps of a report of the doctor.

    Args:
        report: The report.
        reports: The doctor's part of a case file.
    """
    return Judged(answer_of(report), tuple(ref.id for ref in report.headline.evidence), reports)


def not_judged(why: str) -> Judged:
    """Return that a run could not be judged.

    Args:
        why: The reason, of one line.
    """
    return Judged(without_verdict(error=safe_line(f"The doctor could not judge this run: {why}")))


def without_verdict(**fields: Any) -> dict[str, Any]:
    """Return an answer without a sentence.

    Args:
        fields: The fields that it has instead.
    """
    return {**_NO_VERDICT, **fields}


def answer_of(report: Report) -> dict[str, Any]:
    """Return a report of the doctor for the page.

    Args:
        report: The report.
    """
    from ml_diagnostics_console.report import BLAMES, format_cost, title_of
    from ml_diagnostics_console.verdict import Blame

    headline = report.headline
    title = title_of(headline, report.facts)
    text = safe_line(headline.sentence).rstrip(".")
    sentence = f"{title}: {text}." if title else f"{text[:1].upper()}{text[1:]}."
    hosts = {process.host for process in report.facts.processes} | set(headline.hosts)
    proofs: dict[str, str | None] = {}
    for number, ref in enumerate(headline.evidence, 1):
        shows = f"{ref.host}: {ref.shows}" if ref.host and ref.host not in ref.shows else ref.shows
        is_entry = split_insert_id(ref.id) is not None  # Else a file, an object of Kubernetes, or a sum.
        proofs.setdefault(safe_line(shows, _LONGEST_PROOF), f"proof:{number}" if is_entry else None)
    cost = headline.cost
    blame = headline.blame
    is_known = blame is not None and blame is not Blame.UNKNOWN
    return {
        "state": "ready",
        "sentence": sentence,
        "parts": marked(sentence, hosts),
        "class": headline.verdict_class.value,
        "confidence": headline.confidence.value,
        "rule": headline.rule,
        "proofs": [{"text": text, "explain": of} for text, of in list(proofs.items())[:_PROOFS]],
        "cost": safe_line(format_cost(cost)) if cost is not None and cost.seconds > 0 else None,
        "blame": BLAMES[blame] if is_known and blame is not None else None,
        "hosts": list(headline.hosts),
        "next": [{"command": command.command, "why": safe_line(command.why)} for command in headline.next],
        "also": [safe_line(each.sentence) for each in report.shown if each is not headline],
        "not_checked": _not_checked(report),
        "notes": [safe_line(text) for text in report.observations],
        "explain": f"mldiagnostics doctor explain {one_line(report.facts.name)}/1",
        "as_of": report.facts.now_ns / 1e9,
    }


def _not_checked(report: Report) -> list[str]:
    """Return what is missing for a verdict of the headline's kind, equal reasons once."""
    prefix = report.headline.rule[:1]
    found = [each for each in sorted(report.not_checked) if each.rule.startswith(prefix) and not each.is_by_choice]
    return [safe_line(why) for why in dict.fromkeys(each.why for each in found)]
