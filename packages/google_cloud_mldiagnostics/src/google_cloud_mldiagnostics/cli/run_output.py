"""A run as text for people and as JSON for programs: pure functions of a `RunView`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from ml_diagnostics_common.entry import format_timestamp

from google_cloud_mldiagnostics.cli.text import (
    columns,
    format_ago,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    one_line,
)
from google_cloud_mldiagnostics.profiling.layout import logdir_of
from google_cloud_mldiagnostics.reading.run_view import AttemptView, ProcessView, RunView, State
from google_cloud_mldiagnostics.reading.session_view import SessionView

__all__ = ["format_run", "format_runs", "run_as_dict", "runs_as_json"]

_Item = TypeVar("_Item")
_SECOND_NS: Final = 1_000_000_000
_SHOWN: Final = 12
_TRACEBACKS_SHOWN: Final = 3
_LONGEST_VALUE: Final = 100


def format_runs(views: Sequence[RunView], now_ns: int) -> str:
    """Runs as a table, a line each."""
    cells = [("run", "state", "began", "lasted", "group", "why")]
    cells += [
        (
            one_line(view.run_id, 63),
            view.state.value,
            format_clock(view.started_ns),
            _lasted(view, now_ns),
            one_line(view.group, 30) or "-",
            one_line(view.reason, 70),
        )
        for view in views
    ]
    return "\n".join(columns(cells, "<<<><<", indent="")) + "\n"


def format_run(view: RunView, metrics: Sequence[str], where: Sequence[tuple[str, str]], now_ns: int) -> str:
    """A run as a page of text, without a part that has nothing to say.

    Args:
        view: The run.
        metrics: The lines of the table of its metrics.
        where: Names and places that belong to it: its folder, its link.
        now_ns: The time, in ns since 1970.
    """
    parts = [
        _headline(view, where, now_ns),
        _attempts(view),
        _processes(view, now_ns),
        *(_traceback(process) for process in _raising(view)),
        ["metrics", "", *metrics] if metrics else [],
        _sessions(view),
        *(_configs(section, view.configs.get(section, {})) for section in ("user", "software", "hardware")),
        [f"Note: {text}" for text in view.notes],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def run_as_dict(view: RunView) -> dict[str, Any]:
    """All of a run in the types of JSON: times as RFC 3339 in UTC, durations in seconds; None for what is not known."""
    return {
        "run": view.run_id,
        "display_name": view.display_name,
        "group": view.group,
        "state": view.state.value,
        "reason": view.reason,
        "started": _rfc3339(view.started_ns),
        "ended": _rfc3339(view.ended_ns),
        "last_sign": _rfc3339(view.last_sign_ns),
        "gcs_path": view.gcs_path,
        "orchestrator": view.orchestrator,
        "labels": view.labels,
        "configs": view.configs,
        "attempts": [_attempt_as_dict(attempt) for attempt in view.attempts],
        "profiles": [_session_as_dict(session) for session in view.sessions],
        "notes": view.notes,
    }


def runs_as_json(views: Sequence[RunView]) -> str:
    """Runs as a JSON list, without what only `show` tells."""
    told = ("run", "display_name", "group", "state", "reason", "started", "ended", "last_sign", "gcs_path", "labels")
    return json.dumps([{name: run_as_dict(view)[name] for name in told} for view in views], indent=2) + "\n"


def _headline(view: RunView, where: Sequence[tuple[str, str]], now_ns: int) -> list[str]:
    lines = [f"{one_line(view.run_id, 100)}: {view.state.value}"]
    if view.reason:
        lines.append(f"  {one_line(view.reason, 300)}")
    facts = [
        ("name", view.display_name if view.display_name != view.run_id else ""),
        ("group", view.group),
        ("began", format_clock(view.started_ns)),
        ("ended", f"{format_clock(view.ended_ns)}, after {_lasted(view, now_ns)}" if view.ended_ns else ""),
        ("last sign", "" if view.ended_ns or not view.last_sign_ns else format_ago(view.last_sign_ns, now_ns)),
        ("profiles to", view.gcs_path),
        *where,
    ]
    lines.append("")
    return lines + columns([(name, one_line(text, 300)) for name, text in facts if text], "<<")


def _attempts(view: RunView) -> list[str]:
    if len(view.attempts) < 2:
        return []
    cells = [("attempt", "began", "lasted", "processes", "state", "why")]
    for attempt in _first_and_last(view.attempts):
        lasted = _seconds_between(attempt.started_ns, attempt.ended_ns)
        cells.append(
            (
                str(attempt.number),
                format_clock(attempt.started_ns),
                format_duration(lasted),
                str(len(attempt.processes) or "-"),
                attempt.state.value,
                one_line(attempt.reason, 90),
            )
        )
    lines = _with_gap(columns(cells, "><>><<"), len(view.attempts))
    return [format_count(len(view.attempts), "attempt"), "", *lines]


def _processes(view: RunView, now_ns: int) -> list[str]:
    """Those of the last attempt: first who failed, and of them who failed first."""
    processes = sorted(view.processes, key=_by_need)
    if len(processes) < 2 and all(process.profiler_port is None for process in processes):
        return []
    cells = [("process", "host", "pid", "state", "last sign", "profiler", "why")]
    for process in processes[:_SHOWN]:
        cells.append(
            (
                "-" if process.process_index is None else str(process.process_index),
                one_line(process.host, 40),
                str(process.pid),
                process.state.value,
                format_ago(process.last_sign_ns, now_ns),
                _profiler(process),
                one_line(process.reason, 90),
            )
        )
    more = len(processes) - _SHOWN
    gap = [f"  ... {format_count(more, 'more process', 'more processes')}; --format json has all"] if more > 0 else []
    of = f" of attempt {view.attempts[-1].number}" if len(view.attempts) > 1 else ""
    counts = Counter(process.state for process in processes)
    states = ", ".join(f"{count} {state.value}" for state, count in counts.items())
    title = f"{format_count(len(processes), 'process', 'processes')}{of}: {states}"
    return [title, "", *columns(cells, "><><><<"), *gap]


def _raising(view: RunView) -> list[ProcessView]:
    """Return processes of the last attempt that an exception has ended, the first few: others fail because of it."""
    return [process for process in sorted(view.processes, key=_by_need) if process.traceback][:_TRACEBACKS_SHOWN]


def _traceback(process: ProcessView) -> list[str]:
    step = "" if process.step is None else f" (last step recorded: {process.step})"
    lines = [f"exception in {one_line(process.name, 60)}{step}, innermost call first", ""]
    for raised in process.traceback:
        relation = f"{raised.relation} " if raised.relation else ""
        lines.append(one_line(f"  {relation}{raised.title}", 600))
        lines += [one_line(f"    {frame}", 320) for frame in raised.frames]
    return lines


def _by_need(process: ProcessView) -> tuple[int, int, int]:
    """Who needs to be looked at comes first."""
    order = (State.FAILED, State.STALE, State.UNKNOWN, State.ACTIVE, State.COMPLETED)
    when_ns = process.last_sign_ns if process.state is State.FAILED else 0
    return order.index(process.state), when_ns, process.process_index or 0


def _profiler(process: ProcessView) -> str:
    if process.profiler_port is None or process.state.has_ended:
        return "-"
    return f"{process.address or process.host}:{process.profiler_port}"


def _sessions(view: RunView) -> list[str]:
    if not view.sessions:
        return []
    cells = [("profile", "kind", "began", "lasted", "hosts", "size", "state", "why")]
    for session in _first_and_last(view.sessions):
        problems = [f"{host.host}: {host.problem}" for host in session.hosts if host.problem]
        sizes = [host.size_bytes for host in session.hosts if host.size_bytes is not None]
        cells.append(
            (
                one_line(session.session_id, 40),
                session.kind.replace("_", " ") or "-",
                format_clock(session.started_ns),
                format_duration(session.duration_seconds),
                str(len(session.hosts)),
                format_bytes(sum(sizes) if sizes else None),
                session.phase,
                one_line("; ".join(problems), 90),
            )
        )
    lines = _with_gap(columns(cells, "<<<>>><<"), len(view.sessions))
    roots = dict.fromkeys(logdir_of(session.folder) for session in view.sessions if session.folder)
    opened = [f"  open: xprof --logdir {_quoted(root)} --port 8791" for root in roots]
    return [format_count(len(view.sessions), "profile"), "", *lines, *([""] if opened else []), *opened]


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)


def _configs(section: str, configs: dict[str, str]) -> list[str]:
    if not configs:
        return []
    cells = [(one_line(name, 60), one_line(value, _LONGEST_VALUE)) for name, value in configs.items()]
    return [f"{section} configs", "", *columns(cells, "<<")]


def _lasted(view: RunView, now_ns: int) -> str:
    """From the start to the end, else to the last sign, else to now."""
    until_ns = view.ended_ns or (view.last_sign_ns if view.state is State.STALE else now_ns)
    return format_duration(_seconds_between(view.started_ns, until_ns))


def _seconds_between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else max(0, end_ns - start_ns) / _SECOND_NS


def _first_and_last(items: Sequence[_Item]) -> Sequence[_Item]:
    """Returns the items, or the first and the last few where they are too many for a page."""
    return items if len(items) <= _SHOWN else [*items[: _SHOWN // 2], *items[-_SHOWN // 2 :]]


def _with_gap(lines: list[str], count: int) -> list[str]:
    """Says in a table, of which the first line is the heading, how many rows `_first_and_last` left out."""
    if count > _SHOWN:
        lines.insert(1 + _SHOWN // 2, f"  ... {count - _SHOWN} more; --format json has all")
    return lines


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
    times = {"started": _rfc3339(encoded.pop("started_ns")), "last_sign": _rfc3339(encoded.pop("last_sign_ns"))}
    del encoded["attempt"]
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
