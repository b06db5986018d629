"""`goodput report`: how a job spent its time, and what that costs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.console import BOLD, RED
from ml_diagnostics_common.command.errors import NotFoundError, UsageError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import add_plot_options
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement._cli.options import add_cost_options, add_job_arguments, chips_of, moment
from ml_goodput_measurement._cli.source_options import add_source_options, strict_code, with_sources

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._cli.cost import Bill
    from ml_goodput_measurement._ledger import Summary
    from ml_goodput_measurement._query.job_state import Span
    from ml_goodput_measurement.exclusion_utils import ExclusionInterval

__all__ = ["ReportCommand"]


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
            from ml_goodput_measurement._cli.cost import bill_of

            chips = _chips_of_report(report.job_name, options, console)
            bill = bill_of(report, options.cost, chips)
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
        from ml_diagnostics_common.texts import format_clock

        from ml_goodput_measurement._cli.report import ROW_FIELDS, rows_as_dicts
        from ml_goodput_measurement._cli.search import follow_job, hints_if_missing
        from ml_goodput_measurement._cli.window_report import format_window, window_as_dict

        if options.plot is not None or options.exclude:
            raise UsageError("--since cannot be combined with --plot or --exclude")
        sources = with_sources(options)
        follower = follow_job(options.job, options.logger, sources)
        with hints_if_missing(follower.job_name, follower.log_id, sources):
            state = follower.read(lambda summary: _span_since(options.since, summary))
        if not state.windows and state.running:
            raise UsageError(f"--since is in the future: {format_clock(options.since)}")
        if not state.windows:
            raise NotFoundError(f"job {state.job_name[:200]!r} ended before that, at {format_clock(state.end_ns)}")
        (window,) = state.windows
        bill = None
        if options.cost is not None:
            from ml_goodput_measurement._cli.cost import bill_of

            chips = chips_of(options.chips, state.chips, state.job_name, state.log_id, console)
            bill = bill_of(window, options.cost, chips)
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


def _chips_of_report(job: str, options: argparse.Namespace, console: Console) -> int:
    """Return the number of a job's chips, as the journal or else the mirror has it, unless it was given.

    Raises:
        ConfigurationError: It is not known.
    """
    from ml_goodput_measurement._cli.search import find_job
    from ml_goodput_measurement._query.job_state import JobFollower, chips_in
    from ml_goodput_measurement._query.sources import job_labels

    sources = with_sources(options, asks_cloud=False)
    job, log = find_job(job, options.logger, sources)
    chips = chips_in(job_labels(log, job))
    if chips is None and options.chips is None and sources.mirror:
        chips = JobFollower(job, log, sources=sources).read().chips
    return chips_of(options.chips, chips, job, log, console)


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
    from ml_goodput_measurement.money import MICRO

    amounts = bill.amounts(MICRO)
    priced = [{**row, "cost_micro": amount} for row, amount in zip(rows, amounts, strict=True)]
    return priced, (*fields, "cost_micro")


def _exclusions(name: str) -> list[ExclusionInterval]:
    from ml_goodput_measurement.exclusion_utils import read_exclusions

    try:
        return read_exclusions(name)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
