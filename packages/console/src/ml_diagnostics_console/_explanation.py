"""`doctor explain`: all that made a verdict, why its rivals lost, and what a rule needs. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Final

from ml_diagnostics_common.entry import LogEntry, format_timestamp
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._ranking import reason_of_order
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.rule import Rule
from ml_diagnostics_console.doctor import Report
from ml_diagnostics_console.report import format_verdict
from ml_diagnostics_console.verdict import Verdict

__all__ = ["explain_rule", "explain_verdict"]

_WIDTH: Final = 80
_INDENT: Final = "  "


def explain_rule(rule: Rule, width: int | None = None) -> str:
    """Return what a rule needs, its thresholds with their source, and an example.

    Args:
        rule: The rule.
        width: The columns of the terminal; None if there is no limit: then lines have 80.
    """
    columns = min(width or _WIDTH, 120)
    lines = [f"{rule.id}: {rule.title}", "", "needs"]
    lines += [line for need in rule.needs for line in _item(need, columns)]
    if rule.thresholds:
        lines += ["", "thresholds"]
        for each in rule.thresholds:
            lines += _item(f"{each.name}: {each.value}. Source: {each.source}", columns)
    if rule.replaces:
        lines += ["", f"shows more than {', '.join(rule.replaces)}, which it replaces"]
    if rule.example:
        lines += ["", "example", *_item(rule.example, columns)]
    return "\n".join(lines)


def explain_verdict(
    report: Report, verdict: Verdict, width: int | None = None, *, entries: Mapping[str, LogEntry] | None = None
) -> str:
    """Return a verdict with every entry that made it, in full, and why each rival lost.

    Args:
        report: The report that it is in.
        verdict: The verdict.
        width: The columns of the terminal; None if there is no limit: then lines have 80.
        entries: The entries of its evidence by id, to print their payloads in full.
    """
    columns = min(width or _WIDTH, 120)
    lines = [*format_verdict(verdict, columns, report.facts), "", "evidence"]
    for ref in verdict.evidence:
        when = "" if ref.time_ns is None else f"{format_timestamp(ref.time_ns)}  "
        lines += _item(f"{when}{ref.host}  {ref.source}  {ref.id}", columns)
        lines += textwrap.wrap(one_line(ref.shows), columns, initial_indent=_INDENT * 3, subsequent_indent=_INDENT * 3)
        if entries is not None and ref.id in entries:
            payload = json.dumps(entries[ref.id].payload, ensure_ascii=False, sort_keys=True)
            lines += textwrap.wrap(payload, columns, initial_indent=_INDENT * 3, subsequent_indent=_INDENT * 3)
    if not verdict.evidence:
        lines += _item("none: it follows from what is missing", columns)
    rule = next((each for each in all_rules() if each.id == verdict.rule), None)
    if rule is not None and rule.thresholds:
        lines += ["", "thresholds"]
        for threshold in rule.thresholds:
            lines += _item(f"{threshold.name}: {threshold.value}. Source: {threshold.source}", columns)
    rivals = [each for each in report.verdicts if each is not verdict]
    if rivals:
        lines += ["", "rivals"]
        for rival in rivals:
            lines += _item(f"{rival.rule}: {rival.sentence}", columns)
            reason = _order(report, rival, verdict)
            lines += textwrap.wrap(reason, columns, initial_indent=_INDENT * 3, subsequent_indent=_INDENT * 3)
    absent = sorted(
        {each.id for each in all_rules()}
        - {each.rule for each in report.verdicts}
        - {each.rule for each in report.not_checked}
    )
    lines += ["", "checked, and absent", *_item(", ".join(absent) or "none", columns)]
    if report.not_checked:
        lines += ["", "not checked"]
        for each in report.not_checked:
            lines += _item(f"{each.rule}: {each.why}", columns)
    return "\n".join(lines)


def _order(report: Report, rival: Verdict, verdict: Verdict) -> str:
    """Return which of two verdicts of a report is ranked higher, and why."""
    is_higher = report.verdicts.index(rival) < report.verdicts.index(verdict) if verdict in report.verdicts else False
    first, second = (rival, verdict) if is_higher else (verdict, rival)
    return f"{'won' if is_higher else 'lost'}: {reason_of_order(first, second, all_rules())}"


def _item(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent=_INDENT, subsequent_indent=_INDENT * 2, break_long_words=False)
