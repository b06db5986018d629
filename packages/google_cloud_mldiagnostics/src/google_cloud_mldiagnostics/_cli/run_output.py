"""A run as text for people and as data for programs: pure functions of a `RunView`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from ml_diagnostics_common.command.console import BOLD, GREEN, RED, YELLOW
from ml_diagnostics_common.command.formats import MOST_ROWS, first_and_last, format_table, shortened, with_gap
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.texts import (
    format_ago,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
)

from google_cloud_mldiagnostics._profiling.locations import logdir_of, opening_command
from google_cloud_mldiagnostics._reading.run_view import AttemptView, ProcessView, RunView, State
from google_cloud_mldiagnostics._reading.session_view import SessionView

__all__ = [
    "PROCESS_FIELDS",
    "RUN_FIELDS",
    "STATE_STYLES",
    "attempt_table",
    "format_run",
    "format_runs",
    "headline",
    "processes_as_dicts",
    "run_as_dict",
    "runs_as_dicts",
    "shown_configs",
]

_SECOND_NS: Final = 1_000_000_000
_TRACEBACKS_SHOWN: Final = 3
_LONGEST_VALUE: Final = 100
_NOT_INSTALLED: Final = "n/a"
STATE_STYLES: Final = {
    r"\A\S+(?=: )": BOLD,
    r"\bFAILED\b": RED,
    r"\bSTALE\b": YELLOW,
    r"\b(ACTIVE|COMPLETED)\b": GREEN,
}
"""The style of parts of the text on a terminal."""
RUN_FIELDS: Final = (
    *("run", "display_name", "group", "state", "reason", "started", "ended", "last_sign", "gcs_path", "labels"),
)
"""The fields of a run in a list."""
PROCESS_FIELDS: Final = (
    *("attempt", "process_index", "host", "pid", "state", "reason", "started", "last_sign", "step"),
)
"""The columns of processes in CSV."""


def format_runs(views: Sequence[RunView], now_ns: int, width: int | None = None) -> str:
    """Format runs as a table."""
    rows = [
        (
            shortened(view.run_id, 63, width),
            view.state.value,
            format_clock(view.started_ns),
            _lasted(view, now_ns),
            shortened(view.group, 30, width) or "-",
            shortened(view.reason, 70, width),
        )
        for view in views
    ]
    headers = ("run", "state", "started", "lasted", "group", "why")
    return "\n".join(format_table(headers, rows, "<<<><<", width=width, cut=["why", "group"]))


def format_run(
    view: RunView,
    metrics: Sequence[str],
    where: Sequence[tuple[str, str]],
    now_ns: int,
    width: int | None = None,
) -> str:
    """Format a run as a page of text, without empty parts.

    Args:
        view: The run.
        metrics: The lines of the table of its metrics.
        where: The run's paths by name: its folder, its link.
        now_ns: The time, in ns since 1970.
        width: The columns of the terminal; None if there is no limit.
    """
    parts = [
        headline(view, where, now_ns, width),
        _attempts(view, width),
        _processes(view, now_ns, width),
        *(_traceback(process, width) for process in _raising(view)),
        ["metrics", "", *metrics] if metrics else [],
        _sessions(view, width),
        *(_configs(section, shown_configs(view, section), width) for section in ("user", "software", "hardware")),
        [f"Note: {text}" for text in view.notes],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def run_as_dict(view: RunView) -> dict[str, Any]:
    """Return all of a run in the types of JSON: times in RFC 3339 in UTC, durations in seconds; None if not known."""
    return {
        "run": view.run_id,
        "display_name": view.display_name,
        "group": view.group,
        "state": view.state.value,
        "reason": view.reason,
        "started": _rfc3339(view.started_ns),
        "ended": _rfc3339(view.ended_ns),
        "last_sign": _rfc3339(view.last_event_ns),
        "gcs_path": view.gcs_path,
        "orchestrator": view.orchestrator,
        "labels": view.labels,
        "configs": view.configs,
        "attempts": [_attempt_as_dict(attempt) for attempt in view.attempts],
        "profiles": [_session_as_dict(session) for session in view.sessions],
        "notes": view.notes,
    }


def runs_as_dicts(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return runs in the types of JSON, with the fields of a list."""
    return [{name: run_as_dict(view)[name] for name in RUN_FIELDS} for view in views]


def processes_as_dicts(view: RunView) -> list[dict[str, Any]]:
    """Return the processes of all attempts in the types of JSON."""
    return [
        {**_process_as_dict(process), "attempt": attempt.number}
        for attempt in view.attempts
        for process in attempt.processes
    ]


def headline(view: RunView, where: Sequence[tuple[str, str]], now_ns: int, width: int | None = None) -> list[str]:
    """Return the lines with the state of a run, and the facts that have one value."""
    lines = [f"{shortened(view.run_id, 100, width)}: {view.state.value}"]
    if view.reason:
        lines.append(f"  {shortened(view.reason, 300, width)}")
    facts = [
        ("name", view.display_name if view.display_name != view.run_id else ""),
        ("group", view.group),
        ("started", format_clock(view.started_ns)),
        ("ended", f"{format_clock(view.ended_ns)}, after {_lasted(view, now_ns)}" if view.ended_ns else ""),
        ("last event", "" if view.ended_ns or not view.last_event_ns else format_ago(view.last_event_ns, now_ns)),
        ("profiles to", view.gcs_path),
        *where,
    ]
    lines.append("")
    return lines + format_table((), [(name, shortened(text, 300, width)) for name, text in facts if text], indent="  ")


def attempt_table(view: RunView, width: int | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    """Return the headers, a row for each attempt but those in the middle of many, and the alignment."""
    rows: list[tuple[str, ...]] = []
    for attempt in first_and_last(view.attempts):
        lasted = _seconds_between(attempt.started_ns, attempt.ended_ns)
        rows.append(
            (
                str(attempt.number),
                format_clock(attempt.started_ns),
                format_duration(lasted),
                str(len(attempt.processes) or "-"),
                attempt.state.value,
                shortened(attempt.reason, 90, width),
            )
        )
    return ("attempt", "started", "lasted", "processes", "state", "why"), rows, "><>><<"


def _attempts(view: RunView, width: int | None) -> list[str]:
    if len(view.attempts) < 2:
        return []
    headers, rows, align = attempt_table(view, width)
    lines = format_table(headers, rows, align, width=width, cut=["processes", "lasted", "why"], indent="  ")
    lines = with_gap(lines, len(view.attempts), "attempt")
    return [format_count(len(view.attempts), "attempt"), "", *lines]


def _processes(view: RunView, now_ns: int, width: int | None) -> list[str]:
    """Return a table of processes of the last attempt: first those that failed, in the order of their failures."""
    processes = sorted(view.processes, key=_by_need)
    if len(processes) < 2 and all(process.profiler_port is None for process in processes):
        return []
    rows = []
    for process in processes[:MOST_ROWS]:
        rows.append(
            (
                "-" if process.process_index is None else str(process.process_index),
                shortened(process.host, 40, width),
                str(process.pid),
                process.state.value,
                format_ago(process.last_event_ns, now_ns),
                _profiler(process),
                shortened(process.reason, 90, width),
            )
        )
    more = len(processes) - MOST_ROWS
    gap = [f"  ... {format_count(more, 'more process', 'more processes')}; --format json has all"] if more > 0 else []
    of = f" of attempt {view.attempts[-1].number}" if len(view.attempts) > 1 else ""
    counts = Counter(process.state for process in processes)
    states = ", ".join(f"{count} {state.value}" for state, count in counts.items())
    title = f"{format_count(len(processes), 'process', 'processes')}{of}: {states}"
    headers = ("process", "host", "pid", "state", "last event", "profiler", "why")
    cut = ["pid", "last event", "why", "profiler", "state"]
    table = format_table(headers, rows, "><><><<", width=width, cut=cut, indent="  ")
    return [title, "", *table, *gap]


def _raising(view: RunView) -> list[ProcessView]:
    """Return the first processes of the last attempt that an exception ended: others fail because of it."""
    return [process for process in sorted(view.processes, key=_by_need) if process.traceback][:_TRACEBACKS_SHOWN]


def _traceback(process: ProcessView, width: int | None) -> list[str]:
    step = "" if process.step is None else f" (last step recorded: {process.step})"
    lines = [f"exception in {shortened(process.name, 60, width)}{step}, innermost call first", ""]
    for raised in process.traceback:
        relation = f"{raised.relation} " if raised.relation else ""
        lines.append(shortened(f"  {relation}{raised.title}", 600, width))
        lines += [shortened(f"    {frame}", 320, width) for frame in raised.frames]
    return lines + [shortened(f"  {_free(each)}", 320, width) for each in process.file_systems]


def _free(file_system: Mapping[str, Any]) -> str:
    """Return `/checkpoints/40: 0 B of 1.0 TiB free, 12 inodes`, as it was at the failure."""
    free, total = (format_bytes(file_system.get(name)) for name in ("free_bytes", "total_bytes"))
    inodes = file_system.get("free_inodes")
    also = "" if inodes is None else f", {format_count(inodes, 'inode')}"
    return f"{file_system['path']}: {free} of {total} free{also}"


def _by_need(process: ProcessView) -> tuple[int, int, int]:
    """Sort processes that need attention first: before all, the one that failed first."""
    order = (State.FAILED, State.STALE, State.UNKNOWN, State.ACTIVE, State.COMPLETED)
    when_ns = process.last_event_ns if process.state is State.FAILED else 0
    return 0 if process.is_first_cause else 1 + order.index(process.state), when_ns, process.process_index or 0


def _profiler(process: ProcessView) -> str:
    if process.profiler_port is None or process.state.has_ended:
        return "-"
    return f"{process.address or process.host}:{process.profiler_port}"


def _sessions(view: RunView, width: int | None) -> list[str]:
    if not view.sessions:
        return []
    rows = []
    for session in first_and_last(view.sessions):
        problems = [f"{host.host}: {host.problem}" for host in session.hosts if host.problem]
        sizes = [host.size_bytes for host in session.hosts if host.size_bytes is not None]
        rows.append(
            (
                shortened(session.session_id, 40, width),
                session.kind.replace("_", " ") or "-",
                format_clock(session.started_ns),
                format_duration(session.duration_seconds),
                str(len(session.hosts)),
                format_bytes(sum(sizes) if sizes else None),
                session.phase,
                shortened("; ".join(problems), 90, width),
            )
        )
    headers = ("profile", "kind", "started", "lasted", "hosts", "size", "state", "why")
    cut = ["kind", "lasted", "hosts", "size", "why", "state"]
    lines = format_table(headers, rows, "<<<>>><<", width=width, cut=cut, indent="  ")
    lines = with_gap(lines, len(view.sessions), "profile")
    roots = dict.fromkeys(logdir_of(session.folder) for session in view.sessions if session.folder)
    opened = [f"  open: {opening_command(root)}" for root in roots]
    return [format_count(len(view.sessions), "profile"), "", *lines, *([""] if opened else []), *opened]


def shown_configs(view: RunView, section: str) -> dict[str, str]:
    """Return the configs of a section for people, without the framework if it is not installed.

    The public package always records the framework JAX, with the version "n/a" where JAX is not installed.
    """
    configs = view.configs.get(section, {})
    if configs.get("framework_version") != _NOT_INSTALLED:
        return configs
    return {name: value for name, value in configs.items() if name not in ("framework", "framework_version")}


def _configs(section: str, configs: dict[str, str], width: int | None) -> list[str]:
    if not configs:
        return []
    rows = [(shortened(name, 60, width), shortened(value, _LONGEST_VALUE, width)) for name, value in configs.items()]
    return [f"{section} configs", "", *format_table((), rows, indent="  ")]


def _lasted(view: RunView, now_ns: int) -> str:
    """Format the time from the start to the end, else to the last event of a stale run, else to now."""
    until_ns = view.ended_ns or (view.last_event_ns if view.state is State.STALE else now_ns)
    return format_duration(_seconds_between(view.started_ns, until_ns))


def _seconds_between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else max(0, end_ns - start_ns) / _SECOND_NS


def _attempt_as_dict(attempt: AttemptView) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "state": attempt.state.value,
        "reason": attempt.reason,
        "started": _rfc3339(attempt.started_ns),
        "ended": _rfc3339(attempt.ended_ns),
        "processes": [_process_as_dict(process) for process in attempt.processes],
    }


def _process_as_dict(process: ProcessView) -> dict[str, Any]:
    encoded = asdict(process)
    times = {"started": _rfc3339(encoded.pop("started_ns")), "last_sign": _rfc3339(encoded.pop("last_event_ns"))}
    for name in ("attempt", "end", "has_own_end"):
        del encoded[name]
    encoded["role"], encoded["file_systems"] = process.role.value, list(process.file_systems)
    encoded["traceback"] = [raised.to_json() for raised in process.traceback]
    return {**encoded, "state": process.state.value, **times}


def _session_as_dict(session: SessionView) -> dict[str, Any]:
    return {
        "session": session.session_id,
        "kind": session.kind,
        "state": session.phase,
        "folder": session.folder,
        "started": _rfc3339(session.started_ns),
        "duration_seconds": session.duration_seconds,
        "hosts": [host._asdict() for host in session.hosts],
    }


def _rfc3339(time_ns: int | None) -> str | None:
    return None if time_ns is None else format_timestamp(time_ns)
