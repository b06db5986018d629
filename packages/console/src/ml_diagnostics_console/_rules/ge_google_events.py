"""GE: what Google's analyzers report of the run, quoted as theirs. Pure."""

from __future__ import annotations

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_count

from ml_diagnostics_console._facts.facts import Facts, Unknown
from ml_diagnostics_console._facts.monitored_events import MonitoredEvent
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import clock, command_line, quoted
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Part, Verdict, VerdictClass

_LATE_SECONDS = 600.0
_CLASSES = {"PERFORMANCE": VerdictClass.SLOW, "HANG": VerdictClass.STUCK, "STALL": VerdictClass.STUCK}


def judge(facts: Facts) -> Judgement:
    """Return the newest finding of the time of the attempt; None if there is none."""
    if isinstance(facts.monitored_events, Unknown):
        return NotChecked(RULE.id, facts.monitored_events.why, facts.monitored_events.is_by_choice)
    events = [event for event in facts.monitored_events.value if event.has_insight and _is_of_attempt(facts, event)]
    if not events:
        return None
    event = events[0]
    report = next((report for report in event.reports if report.is_detected), None)
    finding = f"{report.analyzer}: {quoted(report.details)}" if report is not None else event.name
    more = f" ({format_count(len(events) - 1, 'other finding')})" if len(events) > 1 else ""
    commands = [NextCommand("", action) for action in (report.actions if report is not None else ())[:1]]
    describe = ("gcloud", "alpha", "mldiagnostics", "monitored-events", "describe", event.id)
    run = f"--machine-learning-run={facts.name}"
    commands.append(NextCommand(command_line(*describe, run), "shows the whole report"))
    since = f" since {clock(event.since_ns)}" if event.since_ns is not None else ""
    shown = finding.rstrip(".")
    return Verdict(
        rule=RULE.id,
        verdict_class=next((kind for word, kind in _CLASSES.items() if word in event.type), VerdictClass.UNKNOWN),
        sentence=f"Google's analyzer reports{since}: {shown}{more}.",
        blame=Blame.UNKNOWN,
        confidence=Confidence.LIKELY,
        part=Part.CONTRIBUTING,
        since_ns=event.since_ns,
        ended_ns=event.ended_ns,
        evidence=tuple(each.ref for each in events[:5]),
        next=tuple(commands),
    )


def _is_of_attempt(facts: Facts, event: MonitoredEvent) -> bool:
    attempt = facts.attempt
    if attempt is None or event.since_ns is None:
        return True
    started_ns, ended_ns = attempt.started_ns or 0, attempt.ended_ns or facts.now_ns
    return event.since_ns <= ended_ns + _LATE_SECONDS * 1e9 and (event.ended_ns is None or event.ended_ns >= started_ns)


RULE = Rule(
    id="GE",
    title="a finding of Google's analyzers",
    needs=("`gcloud alpha mldiagnostics monitored-events`, with --project",),
    judge=judge,
    thresholds=(
        Threshold("start after the end of the attempt, at most (s)", _LATE_SECONDS, "analyzers read delayed metrics"),
    ),
    example=(
        "Google's analyzer reports since 16:02:11 UTC: ICI Link Analyzer: ICI Link issues detected in <instance_ids>."
    ),
)
