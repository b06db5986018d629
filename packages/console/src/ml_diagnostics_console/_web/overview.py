"""A run as a whole: its row, its verdict, attempts, what each restart cost, where the time went, and what happened."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from google_cloud_mldiagnostics.reading import AttemptView, ProcessView
from ml_diagnostics_common.story import ProcessEnd
from ml_diagnostics_common.texts import format_count, format_duration
from ml_goodput_measurement.partition import Bucket, Disruption, JobReport

from ml_diagnostics_console._web.answers import Answer, json_answer
from ml_diagnostics_console._web.ledger_view import bucket_percents, bucket_rows, run_attempts
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_companions import CompanionEvent, companions_of
from ml_diagnostics_console._web.run_data import AttemptSpan, RunData
from ml_diagnostics_console._web.run_goodput import goodput_of, why_none
from ml_diagnostics_console._web.run_rows import pictures_of, row_of
from ml_diagnostics_console._web.sentences import marked, safe_line

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading import SessionView

    from ml_diagnostics_console._web.store import Store

__all__ = ["chips_text", "overview", "session_row"]

_SECOND: Final = 1e9
_MOST_EVENTS: Final = 500
_TOGETHER_SECONDS: Final = 30.0
"""Hosts report one hang, or one signal, within this time."""
_LEAST_ESTIMATED_NS: Final = 10_000_000
_MOST_PROCESSES: Final = 5_000
_SYSTEM_SIGNALS: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"})
_EXCEPTION: Final = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b")
"""The start of the reason of a process that an exception of the program ended."""
_ENDS: Final = {"x": "failed", "p": "preempted", "h": "hung"}


def overview(run: RunData, query: Query, store: Store) -> Answer:
    """Answer all that the page of a run shows besides its curves."""
    answer = run.cached("overview", lambda: _overview(run))
    if (known := store.doctor.answer(run)) is not None:
        answer = {**answer, "verdict": known["sentence"], "verdict_parts": known["parts"]}
    return json_answer(answer)


def _overview(run: RunData) -> dict[str, Any]:
    row = row_of(run, run.cached("pictures", lambda: pictures_of(run)))
    report = goodput_of(run).report(run)
    hosts = sorted({process.host for process in run.view.processes})
    attempts = _attempts(run, report)
    disruptions = _disruptions(run, report)
    if report is not None:
        row |= {"goodput": report.goodput_percent, "buckets": bucket_percents(report)}
    return {
        **row,
        "verdict_parts": marked(row["verdict"], hosts),
        "attempt_list": attempts,
        "disruptions": disruptions,
        "totals": _totals(run, report, disruptions),
        "ledger": [] if report is None else bucket_rows(report),
        "ledger_notes": [] if report is None else _ledger_notes(report),
        "ledger_help": why_none(run) if report is None else None,
        "metrics_list": [_metric(run, name) for name in run.columns.names()],
        "sessions": [session_row(session) for session in run.view.sessions],
        "processes": _processes(run),
        "events": _events(run),
        "chips": chips_text(run.view.configs.get("hardware", {})),
        "log_hosts": hosts,
        "notes": [safe_line(note) for note in run.view.notes],
        "now": run.now_s,
    }


# --- Attempts and disruptions --------------------------------------------------------------------------


def _attempts(run: RunData, report: JobReport | None) -> list[dict[str, Any]]:
    steps: dict[int, tuple[int | None, int | None]] = {}
    if report is not None:
        for number, attempt in zip(run_attempts(run, report), report.attempts, strict=True):
            first, last = steps.get(number, (None, None))
            steps[number] = first if first is not None else attempt.first_step, attempt.last_step or last
    return [
        {
            "number": attempt.number,
            "started": attempt.started_s or None,
            "ended": attempt.ended_s,
            "end": attempt.end,
            "reason": safe_line(attempt.reason),
            "hosts": len({process.host for process in attempt.view.processes}),
            "first_step": steps.get(attempt.number, (None, None))[0],
            "last_step": _last_step(attempt, steps.get(attempt.number, (None, None))[1]),
        }
        for attempt in run.attempts
    ]


def _last_step(attempt: AttemptSpan, of_ledger: int | None) -> int | None:
    """Return the last step of any process, as the row of the run has it: the ledger's may have no end."""
    return max((process.step for process in attempt.view.processes if process.step is not None), default=of_ledger)


def _disruptions(run: RunData, report: JobReport | None) -> list[dict[str, Any]]:
    """Return each restart with its cause and cost."""
    if report is None:
        return []
    found = []
    own = {attempt.number: attempt for attempt in run.attempts}
    numbers = run_attempts(run, report)
    for disruption in report.disruptions:
        attempt = own.get(numbers[disruption.attempt - 1] if disruption.attempt <= len(numbers) else 0)
        found.append(
            {
                "attempt": attempt.number if attempt is not None else disruption.attempt,
                "at": disruption.last_event_ns / _SECOND,
                "what": _what(attempt),
                "by": "unknown" if attempt is None else blame_of(attempt.view, attempt.end),
                "steps_lost": disruption.steps_lost,
                "cost_seconds": disruption.cost_ns / _SECOND,
                "parts": _parts(disruption),
                "explain": f"disruption:{disruption.number}",
            }
        )
    return found


def _what(attempt: AttemptSpan | None) -> str:
    if attempt is None or not attempt.reason:
        return "ended without a recorded reason"
    return safe_line(attempt.reason)


def _parts(disruption: Disruption) -> dict[str, float]:
    return {
        "infrastructure": disruption.infrastructure_ns / _SECOND,
        "initialization": disruption.init_ns / _SECOND,
        "restore": disruption.restore_ns / _SECOND,
        "data_loading": disruption.data_loading_ns / _SECOND,
        "startup": disruption.startup_ns / _SECOND,
        "recompute": disruption.recompute_ns / _SECOND,
    }


def blame_of(attempt: AttemptView, end: str) -> str:
    """Return which side ended an attempt: user, system, preemption or unknown, by the process that failed first.

    Args:
        attempt: The attempt.
        end: Its end as a letter: see `AttemptSpan`.
    """
    if end == "p":
        return "preemption"
    first = next((process for process in attempt.processes if process.is_first_cause), None)
    if first is None and len(attempt.processes) == 1:
        first = attempt.processes[0]
    return "unknown" if first is None else _side(first.end)


def _side(end: ProcessEnd) -> str:
    if end.was_asked or end.signal == "SIGTERM":
        return "preemption"
    if _EXCEPTION.match(end.exception) or end.how in ("exit", "out_of_memory", "clean"):
        return "user"
    return "system" if end.signal in _SYSTEM_SIGNALS else "unknown"


def _totals(run: RunData, report: JobReport | None, disruptions: list[dict[str, Any]]) -> dict[str, Any]:
    end_s = run.ended_s if run.ended_s is not None else (run.now_s if run.is_live else run.beat_s or run.now_s)
    wall = report.wall_ns / _SECOND if report is not None else max(0.0, end_s - run.started_s)
    began_s = run.started_s if report is None else min(run.started_s, report.start_ns / _SECOND)
    productive = None if report is None else report.buckets[Bucket.PRODUCTIVE] / _SECOND
    return {
        "began": began_s if run.started_s else None,
        "wall_seconds": wall if run.started_s else None,
        "productive_seconds": productive,
        "disruption_seconds": None if report is None else math.fsum(each["cost_seconds"] for each in disruptions),
        "steps": report.steps_kept if report is not None and report.steps_kept else None,
    }


def _ledger_notes(report: JobReport) -> list[str]:
    notes = [safe_line(note) for note in report.notes]
    if report.estimated_ns >= _LEAST_ESTIMATED_NS:
        seconds = format_duration(report.estimated_ns / _SECOND)
        notes.insert(0, f"{seconds} of steps have an estimated end: the process was killed in them.")
    notes += [
        f"{each.bucket.value.lower().replace('_', ' ')}: inferred from {safe_line(each.source)} ({each.certainty})"
        for each in report.inferred
    ]
    return notes


# --- Metrics, profiles, processes, events ----------------------------------------------------------------


def _metric(run: RunData, name: str) -> dict[str, Any]:
    columns = run.columns.of(name)
    first = columns[0]
    last = first.last
    return {
        "name": name,
        "unit": first.unit,
        "series": len(columns),
        "points": sum(map(len, columns)),
        "hosts": len({column.host for column in columns}),
        "has_steps": first.has_steps,
        "last": last if last is not None and math.isfinite(last) else None,
        "last_step": first.last_step,
    }


def session_row(session: SessionView) -> dict[str, Any]:
    """Return a profile for the list of profiles."""
    sizes = [host.size_bytes for host in session.hosts if host.size_bytes is not None]
    problems = [f"{host.host}: {host.problem}" for host in session.hosts if host.problem]
    return {
        "id": session.session_id,
        "kind": session.kind.replace("_", " "),
        "time": None if session.started_ns is None else session.started_ns / _SECOND,
        "duration_seconds": session.duration_seconds,
        "phase": session.phase.lower(),
        "hosts": len(session.hosts),
        "bytes": sum(sizes) if sizes else None,
        "problem": safe_line("; ".join(problems)) if problems else None,
        "by_host": [
            {
                "host": host.host,
                "process_index": host.process_index,
                "phase": host.phase.lower(),
                "bytes": host.size_bytes,
                "problem": safe_line(host.problem) if host.problem else None,
            }
            for host in session.hosts
        ],
    }


def _processes(run: RunData) -> list[dict[str, Any]]:
    newest_first = [process for attempt in reversed(run.view.attempts) for process in attempt.processes]
    return [_process(process) for process in newest_first[:_MOST_PROCESSES]]


def _process(process: ProcessView) -> dict[str, Any]:
    return {
        "host": process.host,
        "process_index": process.process_index,
        "pid": process.pid,
        "attempt": process.attempt,
        "state": process.state.value.lower(),
        "reason": safe_line(process.reason),
        "started": process.started_ns / _SECOND if process.started_ns else None,
        "ended": process.end.ended_ns / _SECOND if process.end.ended_ns else None,
        "last_sign": process.last_event_ns / _SECOND if process.last_event_ns else None,
        "last_step": process.step,
        "is_first_cause": process.is_first_cause,
    }


def _events(run: RunData) -> list[dict[str, Any]]:
    """Return what happened, by time: ends of attempts, hangs, signals, profiles."""
    events: list[dict[str, Any]] = [
        {"time": attempt.ended_s, "kind": _ENDS[attempt.end], "text": f"attempt {attempt.number}: {_what(attempt)}"}
        for attempt in run.attempts
        if attempt.ended_s is not None and attempt.end in _ENDS
    ]
    for same in _together(event for event in companions_of(run).events if event.kind != "ended"):
        more = len({event.host for event in same}) - 1
        others = f" (and {format_count(more, 'other host')})" if more else ""
        text = f"{same[0].host}: {same[0].text}{others}"
        events.append({"time": same[0].time_ns / _SECOND, "kind": same[0].kind, "text": text})
    for session in run.view.sessions:
        if session.started_ns is not None:
            text = f"profile {session.session_id}"
            events.append({"time": session.started_ns / _SECOND, "kind": "profile", "text": text})
    events.sort(key=lambda event: event["time"] or 0.0)
    return events[-_MOST_EVENTS:]


def _together(events: Iterable[CompanionEvent]) -> list[list[CompanionEvent]]:
    """Return events of one kind that several hosts have at about the same time as one; the ends are left out."""
    found: list[list[CompanionEvent]] = []
    open_groups: dict[str, list[CompanionEvent]] = {}
    for event in events:
        same = open_groups.get(event.kind)
        is_close = same is not None and event.time_ns - same[0].time_ns <= _TOGETHER_SECONDS * _SECOND
        if same is None or not is_close:
            same = open_groups[event.kind] = []
            found.append(same)
        same.append(event)
    return found


def chips_text(hardware: Mapping[str, str]) -> str:
    """Return the accelerators of a run: `256 chips TPU v5p`, `8 GPUs`; empty if the run does not show them.

    Args:
        hardware: Its hardware configs.
    """
    count = hardware.get("num_devices", "")
    kind = hardware.get("device_kind") or hardware.get("accelerator_type") or hardware.get("device_type") or ""
    if not count.isdecimal() or not kind or "cpu" in kind.lower():
        return ""
    noun = "GPU" if "gpu" in hardware.get("device_type", "").lower() or "nvidia" in kind.lower() else "chip"
    return safe_line(f"{int(count):,} {noun}{'' if count == '1' else 's'} {kind}", 80)
