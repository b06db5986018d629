"""`goodput list`: the jobs of this machine and of a mirror, with their goodput."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.console import RED
from ml_diagnostics_common.command.errors import FAILED
from ml_diagnostics_common.command.formats import add_format_option

from ml_goodput_measurement._cli.options import label, moment
from ml_goodput_measurement._cli.source_options import add_source_options, strict_code, with_sources

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._query.job_state import JobState
    from ml_goodput_measurement._query.sources import Sources

__all__ = ["ListCommand"]

_FIELDS = ("job", "team", "state", "started", "wall_seconds", "goodput_percent", "log")


class ListCommand:
    """Lists the jobs of this machine, and of a mirror."""

    name = "list"
    summary = "list jobs with their goodput"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "--since",
            metavar="TIME",
            type=moment,
            default=0,
            help="only jobs with an event since then: 7d, a day such as 2026-11-21, or a time (default: all)",
        )
        add_source_options(parser, with_cloud=False)
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the jobs, the one that started last first."""
        from ml_diagnostics_common.command.formats import format_data

        sources = with_sources(options, asks_cloud=False)
        found, failures = _states(options.since, sources, console)
        states = sorted(found, key=lambda state: -state.start_ns)
        if options.format != "table":
            rows = [_as_dict(state) for state in states]
            console.data(format_data({"jobs": rows}, options.format, rows, _FIELDS))
        elif states:
            console.data("\n".join(_table(states, console.width)), styles={r"\bfailed\b|\bgone\b": RED})
        elif not failures:
            where = "on this machine or in the mirror" if sources.mirror else "on this machine"
            console.notify("no job has an event since then" if options.since else f"no job was recorded {where}")
        for failure in failures:
            console.warn(failure)
        _notify_missing(states, console)
        return FAILED if failures else strict_code(options, console, (note for state in states for note in state.notes))


def _states(since_ns: int, sources: Sources, console: Console) -> tuple[list[JobState], list[str]]:
    """Return the state of each job with an event since a moment, and why the others cannot be read."""
    from ml_diagnostics_common.exceptions import CredentialsError, StorageError

    from ml_goodput_measurement._query.job_state import JobFollower
    from ml_goodput_measurement._query.sources import Sources, last_written_ns, logs_of_jobs, mirrored_jobs
    from ml_goodput_measurement.exceptions import NoGoodputError

    states: list[JobState] = []
    failures: list[str] = []
    logs = {log: jobs for log, jobs in logs_of_jobs().items() if last_written_ns(log) >= since_ns}
    if sources.mirror:
        from ml_diagnostics_common.mirror.segments import NewerFormatError

        try:
            mirrored = mirrored_jobs(sources.mirror, since_ns=since_ns)
        except (StorageError, CredentialsError) as error:
            if isinstance(error, NewerFormatError):
                raise
            failures.append(f"the mirror {sources.mirror} cannot be read: {error}")
            mirrored, sources = {}, Sources(mirror="")
        for log, jobs in mirrored.items():
            logs[log] = logs.get(log, set()) | jobs
    for log, jobs in sorted(logs.items()):
        for job in sorted(jobs):
            console.detail(f"reading {job!r}")
            try:
                follower = JobFollower(job, log, sources=sources if sources.mirror else Sources(mirror=""))
                # Without a mirror, a saved state that was read from Cloud Logging, too, is not replaced.
                state = follower.read(local_only=not sources.mirror)
            except NoGoodputError:
                continue  # A log of something else, with the same name.
            except (StorageError, OSError) as error:
                failures.append(f"job {job[:200]!r} cannot be read: {error}")
                continue
            if state.last_event_ns >= since_ns and state.wall_ns:
                states.append(state)
    return states, failures


def _notify_missing(states: list[JobState], console: Console) -> None:
    """Print how many jobs are not complete, if any: their reports have the details."""
    from ml_diagnostics_common.log_source import INCOMPLETE
    from ml_diagnostics_common.texts import format_count

    names = [state.job_name for state in states if any(note.startswith(INCOMPLETE) for note in state.notes)]
    if names:
        console.notify(
            f"incomplete: entries of {format_count(len(names), 'job')} are missing, such as of {names[0][:200]!r}; its "
            "report lists them"
        )


def _table(states: list[JobState], width: int | None) -> list[str]:
    from ml_diagnostics_common.command.formats import format_table
    from ml_diagnostics_common.texts import format_clock, format_percent

    from ml_goodput_measurement._cli.report import format_ns

    cells = [
        (
            state.job_name,
            label(state.labels, "team"),
            state.state,
            format_clock(state.start_ns),
            format_ns(state.wall_ns),
            format_percent(state.goodput_percent),
        )
        for state in states
    ]
    headers = ("job", "team", "state", "started", "wall", "goodput")
    return format_table(headers, cells, "<<<<>>", width=width, cut=["team", "job"])


def _as_dict(state: JobState) -> dict[str, Any]:
    from ml_diagnostics_common.entry import format_timestamp

    return {
        "job": state.job_name,
        "team": state.labels.get("team"),
        "state": state.state,
        "started": format_timestamp(state.start_ns),
        "wall_seconds": state.wall_ns / 1e9,
        "goodput_percent": state.goodput_percent,
        "log": state.log_id,
        "chips": state.chips,
        "last_step": state.last_step,
        "attempts": state.attempts,
        "disruptions": state.disruptions,
        "last_event": format_timestamp(state.last_event_ns),
        "notes": list(state.notes),
    }
