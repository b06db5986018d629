"""The command `goodput`: how a training job spent its time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.console import BOLD, RED
from ml_diagnostics_common.command.errors import NotFoundError, UsageError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.further_commands import further_commands
from ml_diagnostics_common.command.options import add_plot_options
from ml_diagnostics_common.command.program import Command, Program
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement._cli.advise_command import AdviseCommand, WhatIfCommand
from ml_goodput_measurement._cli.compare_command import CompareCommand
from ml_goodput_measurement._cli.export_command import ExportCommand
from ml_goodput_measurement._cli.list_command import ListCommand
from ml_goodput_measurement._cli.mirror_command import MirrorCommand
from ml_goodput_measurement._cli.options import add_cost_options, add_job_arguments, chips_of, moment
from ml_goodput_measurement._cli.source_options import add_source_options, strict_code, with_sources
from ml_goodput_measurement._cli.watch_command import WatchCommand
from ml_goodput_measurement._version import __version__

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._cli.buckets import TimeByBucket
    from ml_goodput_measurement._cli.cost import Bill
    from ml_goodput_measurement._ledger import Summary
    from ml_goodput_measurement._query.job_state import Span
    from ml_goodput_measurement.exclusion_utils import ExclusionInterval

__all__ = ["main"]

_GROUP = "ml_goodput_measurement.commands"
"""The entry points of subcommands that other distributions have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `goodput`; None takes those of this process.
    """
    return Program("goodput", "How a training job spent its time.", __version__, _commands).main(arguments)


def _commands() -> Iterator[Command]:
    yield ReportCommand()
    yield ListCommand()
    yield WatchCommand()
    yield CompareCommand()
    yield AdviseCommand()
    yield WhatIfCommand()
    yield ExportCommand()
    yield MirrorCommand()
    yield from further_commands("goodput", _GROUP, "ml-diagnostics-fleet", {"fleet": "sum the goodput of many jobs"})


class ReportCommand:
    """Reports how a job spent its time."""

    name = "report"
    summary = "report how a job spent its time"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_job_arguments(parser)
        add_plot_options(parser, "the job's timeline")
        parser.add_argument(
            "--exclude",
            metavar="FILE.json",
            type=_exclusions,
            default=[],
            help='leave out time: [{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "..."}, ...]',
        )
        parser.add_argument(
            "--since",
            metavar="TIME",
            type=moment,
            help="only the time since then: 7d, a day such as 2026-11-21, or a time (default: the whole life)",
        )
        add_cost_options(parser)
        add_source_options(parser)
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the report, and draw the timeline."""
        if options.since is not None:
            return self._run_since(options, console)
        from ml_diagnostics_common.command.formats import format_data

        from ml_goodput_measurement._cli.report import ROW_FIELDS, as_dict, format_text, rows_as_dicts
        from ml_goodput_measurement._cli.search import find_report

        if options.plot is not None:
            from ml_diagnostics_common.command.plotting import require_matplotlib

            require_matplotlib("ml-goodput-measurement")
        report = find_report(
            options.job,
            options.logger,
            options.exclude,
            with_timeline=options.plot is not None,
            sources=with_sources(options),
        )
        bill = None
        if options.cost is not None:
            bill = _bill(report, options, _recorded_chips(report.job_name, options))
        if options.format == "table":
            lines = _bill_lines(bill, console)
            console.data(format_text(report, console.width, lines), styles={r"\A.+": BOLD, r"\bfailed\b": RED})
        else:
            rows, fields = _with_amounts(rows_as_dicts(report), ROW_FIELDS, bill)
            document = {**as_dict(report), **({"cost": bill.as_dict()} if bill else {})}
            console.data(format_data(document, options.format, rows, fields))
        if options.plot is not None:
            from ml_goodput_measurement._cli.plot import plot_timeline

            plot_timeline(report, options.plot, dark=options.dark)
            console.notify(f"Plot saved to {options.plot}.")
        return strict_code(options, console, report.notes)

    def _run_since(self, options: argparse.Namespace, console: Console) -> int:
        """Print the report of the time since a moment."""
        from ml_diagnostics_common.command.formats import format_data

        from ml_goodput_measurement._cli.report import ROW_FIELDS, rows_as_dicts
        from ml_goodput_measurement._cli.search import follow_job, hints_if_missing
        from ml_goodput_measurement._cli.window_report import format_window, window_as_dict

        if options.plot is not None or options.exclude:
            raise UsageError("--since cannot be combined with --plot or --exclude")
        sources = with_sources(options)
        follower = follow_job(options.job, options.logger, sources)
        with hints_if_missing(follower.job_name, follower.log_id, sources):
            state = follower.read(lambda summary: _span_since(options.since, summary))
        if not state.windows:
            raise NotFoundError(f"job {state.job_name[:200]!r} ended before that, at {_clock(state.end_ns)}")
        (window,) = state.windows
        bill = _bill(window, options, state.chips, state.job_name) if options.cost is not None else None
        if options.format == "table":
            console.data(
                format_window(state, window, console.width, _bill_lines(bill, console)), styles={r"\A.+": BOLD}
            )
        else:
            rows, fields = _with_amounts(rows_as_dicts(window), ROW_FIELDS, bill)
            document = {**window_as_dict(state, window), **({"cost": bill.as_dict()} if bill else {})}
            console.data(format_data(document, options.format, rows, fields))
        return strict_code(options, console, state.notes)


def _span_since(since_ns: int, summary: Summary) -> list[Span]:
    start_ns = max(since_ns, summary.start_ns)
    return [(start_ns, summary.end_ns)] if start_ns < summary.end_ns else []


def _clock(time_ns: int) -> str:
    from ml_diagnostics_common.texts import format_clock

    return format_clock(time_ns)


def _recorded_chips(job: str, options: argparse.Namespace) -> int | None:
    """Return the number of chips that a job recorded, by the journal or else the mirror; None if it is not known."""
    from ml_goodput_measurement._cli.search import find_job
    from ml_goodput_measurement._query.job_state import JobFollower, chips_in
    from ml_goodput_measurement._query.sources import job_labels

    sources = with_sources(options, asks_cloud=False)
    job, log = find_job(job, options.logger, sources)
    chips = chips_in(job_labels(log, job))
    if chips is None and options.chips is None and sources.mirror:
        return JobFollower(job, log, sources=sources).read().chips
    return chips


def _bill(time: TimeByBucket, options: argparse.Namespace, chips: int | None, job: str = "") -> Bill:
    from ml_goodput_measurement._cli.cost import bill_of

    return bill_of(time, options.cost, chips_of(options.chips, chips, job or options.job))


def _bill_lines(bill: Bill | None, console: Console) -> list[str]:
    if bill is None:
        return []
    from ml_goodput_measurement._cli.cost import format_bill

    return format_bill(bill, console.width)


def _with_amounts(
    rows: list[dict[str, Any]], fields: tuple[str, ...], bill: Bill | None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows of CSV, with the amount of each if there is a bill."""
    if bill is None:
        return rows, fields
    amounts = bill.by_name()
    return [{**row, "cost_micro": amounts[row["name"]]} for row in rows], (*fields, "cost_micro")


def _exclusions(name: str) -> list[ExclusionInterval]:
    from ml_goodput_measurement.exclusion_utils import read_exclusions

    try:
        return read_exclusions(name)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    import sys

    sys.exit(main())
