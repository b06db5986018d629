"""Findings of Google's analyzers on a run, quoted as theirs. Pure: `gcloud` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console.verdict import Ref

__all__ = ["AnalyzerReport", "MonitoredEvent", "parse_event"]

SOURCE: Final = "monitored-events"
_MOST_REPORTS: Final = 20
_LONGEST_TEXT: Final = 1_000
_NO_YEAR: Final = "0001-"
"""Google writes the year 1 for a time in the future."""


@dataclass(frozen=True, slots=True)
class AnalyzerReport:
    """The finding of one analyzer, quoted.

    Attributes:
        analyzer: Its name.
        is_detected: True if it found what it searches for.
        details: Its finding.
        actions: Its recommendations.
        url: A page about it.
    """

    analyzer: str
    is_detected: bool
    details: str
    actions: tuple[str, ...] = ()
    url: str = ""


@dataclass(frozen=True, slots=True)
class MonitoredEvent:
    """One event of a run that Google's monitoring detected.

    Attributes:
        id: Its id.
        name: Its name for people.
        type: Its type, such as PERFORMANCE_DEGRADATION.
        since_ns: When it started, in ns since 1970; None if it is not known.
        ended_ns: When it ended; None if it has not.
        reports: The findings of analyzers.
        has_insight: True if an analyzer found something, also if its report was not read.
    """

    id: str
    name: str
    type: str = ""
    since_ns: int | None = None
    ended_ns: int | None = None
    reports: tuple[AnalyzerReport, ...] = ()
    has_insight: bool = False

    @property
    def ref(self) -> Ref:
        """The evidence of it."""
        return Ref(self.id, SOURCE, self.since_ns, "", f"{self.type or 'event'}: {self.name}")


def parse_event(document: object) -> MonitoredEvent | None:
    """Return an event in the JSON of gcloud; None if it has no name."""
    if not isinstance(document, Mapping):
        return None
    full = document.get("name")
    if not isinstance(full, str) or not full:
        return None
    event_id = full.rpartition("/")[2]
    reports = tuple(_reports(document.get("analyzerReports")))
    return MonitoredEvent(
        id=event_id,
        name=_text(document, "displayName") or event_id,
        type=_text(document, "type"),
        since_ns=_time(document, "startTime"),
        ended_ns=_time(document, "endTime"),
        reports=reports,
        has_insight=document.get("analyzerInsightFound") is True or any(report.is_detected for report in reports),
    )


def _reports(value: object) -> list[AnalyzerReport]:
    found = []
    for report in value[:_MOST_REPORTS] if isinstance(value, list) else ():
        if isinstance(report, Mapping) and (analyzer := _text(report, "analyzer")):
            listed = report.get("recommendedActions")
            actions = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
            texts = tuple(text for action in actions[:_MOST_REPORTS] if (text := _text(action, "description")))
            url = next((url for action in actions if (url := _text(action, "documentationUrl"))), "")
            is_detected = _text(report, "detectionState") == "DETECTED"
            found.append(AnalyzerReport(analyzer, is_detected, _text(report, "details"), texts, url))
    return found


def _text(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    return one_line(value, _LONGEST_TEXT).strip() if isinstance(value, str) else ""


def _time(mapping: Mapping[str, Any], key: str) -> int | None:
    text = _text(mapping, key)
    try:
        return parse_timestamp(text) if text and not text.startswith(_NO_YEAR) else None
    except ValueError:
        return None
