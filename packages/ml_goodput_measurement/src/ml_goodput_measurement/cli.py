"""The command `goodput`: how a training job spent its time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.console import BOLD, RED
from ml_diagnostics_common.command.errors import DONE
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import add_plot_options
from ml_diagnostics_common.command.program import Command, Program
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement._version import __version__

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement.exclusion_utils import ExclusionInterval

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `goodput`; None takes those of this process.
    """
    return Program("goodput", "How a training job spent its time.", __version__, _commands).main(arguments)


def _commands() -> Iterator[Command]:
    yield ReportCommand()


class ReportCommand:
    """Reports how a job spent its time."""

    name = "report"
    summary = "report how a job spent its time"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "job",
            metavar="JOB",
            help="the job's name, as given to its recorder; last: the job that started last on this machine",
        )
        parser.add_argument(
            "--logger",
            metavar="NAME",
            help="the log of the job (default: goodput_JOB, else the only log of this job in the journal)",
        )
        add_plot_options(parser, "the job's timeline")
        parser.add_argument(
            "--exclude",
            metavar="FILE.json",
            type=_exclusions,
            default=[],
            help='leave out time: [{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "..."}, ...]',
        )
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the report, and draw the timeline."""
        from ml_diagnostics_common.command.formats import format_data

        from ml_goodput_measurement._cli.report import ROW_FIELDS, as_dict, format_text, rows_as_dicts
        from ml_goodput_measurement._cli.search import find_report

        if options.plot is not None:
            from ml_diagnostics_common.command.plotting import require_matplotlib

            require_matplotlib("ml-goodput-measurement")
        report = find_report(options.job, options.logger, options.exclude, with_timeline=options.plot is not None)
        if options.format == "table":
            console.data(format_text(report, console.width), styles={r"\A.+": BOLD, r"\bfailed\b": RED})
        else:
            console.data(format_data(as_dict(report), options.format, rows_as_dicts(report), ROW_FIELDS))
        if options.plot is not None:
            from ml_goodput_measurement._cli.plot import plot_timeline

            plot_timeline(report, options.plot, dark=options.dark)
            console.notify(f"Plot saved to {options.plot}.")
        return DONE


def _exclusions(name: str) -> list[ExclusionInterval]:
    from ml_goodput_measurement.exclusion_utils import read_exclusions

    try:
        return read_exclusions(name)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    import sys

    sys.exit(main())
