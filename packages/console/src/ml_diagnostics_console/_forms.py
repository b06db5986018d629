"""Reports in the forms of the command: text, JSON, and entries in the form of Google's monitored events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.entry import format_timestamp

from ml_diagnostics_console.doctor import Report
from ml_diagnostics_console.report import STYLES, format_report
from ml_diagnostics_console.verdict import Verdict, VerdictClass

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["monitored_event", "print_reports"]


def print_reports(
    reports: Sequence[Report],
    form: str,
    console: Console,
    *,
    with_all: bool = False,
    is_list: bool = False,
    is_stream: bool = False,
) -> None:
    """Print reports as data.

    Args:
        reports: One for each attempt.
        form: `text`, `json` or `monitored-event`.
        console: The terminal.
        with_all: For text: all verdicts, and all that was not checked.
        is_list: For JSON: a list, also of one report.
        is_stream: For JSON: an object in a line.
    """
    if form == "text":
        texts = []
        for report in reports:
            title = f"attempt {report.facts.attempt.number}\n" if len(reports) > 1 and report.facts.attempt else ""
            texts.append(title + format_report(report, console.width, with_all=with_all))
        console.data("\n\n".join(texts), styles=STYLES)
    elif form == "json":
        values = [report.to_json() for report in reports]
        indent = None if is_stream else 2
        console.data(json.dumps(values if is_list else values[0], indent=indent, ensure_ascii=False))
    else:
        for report in reports:
            for verdict in report.shown:
                if verdict.verdict_class is not VerdictClass.HEALTHY:
                    console.data(json.dumps(monitored_event(report, verdict), ensure_ascii=False))


def monitored_event(report: Report, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict in the form of Google's monitored events, one line of JSON each.

    Args:
        report: The report that it is in.
        verdict: The verdict.
    """
    facts = report.facts
    return {
        "name": f"{facts.name}/monitoredEvents/{verdict.rule.lower()}-{facts.attempt.number if facts.attempt else 0}",
        "displayName": verdict.sentence,
        "type": f"ML_DIAGNOSTICS_{verdict.verdict_class.value.upper()}",
        "startTime": None if verdict.since_ns is None else format_timestamp(verdict.since_ns),
        "endTime": None if verdict.ended_ns is None else format_timestamp(verdict.ended_ns),
        "details": verdict.to_json(),
    }
