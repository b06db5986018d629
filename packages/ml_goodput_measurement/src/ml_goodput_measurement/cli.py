"""The command `goodput`: how a training job spent its time."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.console import BOLD, RED
from ml_diagnostics_common.command.errors import DONE, NotFoundError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import picture
from ml_diagnostics_common.command.program import Command, Program
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement._version import __version__

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement.exclusion_utils import ExclusionInterval
    from ml_goodput_measurement.partition import JobReport

__all__ = ["main"]

_NAMES_SHOWN = 20
_LAST = "last"
_LOGS_OF_OTHERS = ("ml_diagnostics_metric", "tpu.googleapis.com/runtime_monitor")
"""Logs of our other libraries, which have the same job names and no goodput."""


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
        parser.add_argument("--plot", metavar="FILE.png", type=picture, help="also draw the job's timeline")
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

        if options.plot is not None:
            from ml_diagnostics_common.command.plotting import require_matplotlib

            require_matplotlib("ml-goodput-measurement")
        report = _report(options.job, options.logger, options.exclude, with_timeline=options.plot is not None)
        if options.format == "table":
            console.data(format_text(report, console.width), styles={r"\A.+": BOLD, r"\bfailed\b": RED})
        else:
            console.data(format_data(as_dict(report), options.format, rows_as_dicts(report), ROW_FIELDS))
        if options.plot is not None:
            from ml_goodput_measurement._cli.plot import plot_timeline

            plot_timeline(report, options.plot)
            console.notify(f"Plot saved to {options.plot}.")
        return DONE


def _exclusions(name: str) -> list[ExclusionInterval]:
    from ml_goodput_measurement.exclusion_utils import read_exclusions

    try:
        return read_exclusions(name)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _report(job: str, logger: str | None, exclusions: Sequence[ExclusionInterval], *, with_timeline: bool) -> JobReport:
    """Return the report of a job.

    Raises:
        NotFoundError: Nothing was recorded for the job.
        ConfigurationError: The job is in several logs.
    """
    from ml_diagnostics_common.environment import diagnostics_directory
    from ml_diagnostics_common.journal import jobs_by_log, newest_job

    from ml_goodput_measurement._query.calculator import GoodputCalculator
    from ml_goodput_measurement.exceptions import NoGoodputError

    logs = {log: jobs for log, jobs in jobs_by_log(diagnostics_directory()).items() if log not in _LOGS_OF_OTHERS}
    if job == _LAST and not any(job in jobs for jobs in logs.values()):
        newest = newest_job(diagnostics_directory(), except_logs=_LOGS_OF_OTHERS)
        if newest is None:
            raise NotFoundError(f"there is no last job. {_empty_journal()}")
        logger, job = logger or newest[0], newest[1]
    log = logger or _log_of(job, logs)
    try:
        calculator = GoodputCalculator(job, log, _logs_failures=False)  # The report has a note.
        return calculator.report(include_timeline=with_timeline, exclusions=exclusions)
    except NoGoodputError as error:
        raise NotFoundError("\n  ".join([str(error), *_hints(job, log, logs)])) from None


def _log_of(job: str, logs: Mapping[str, set[str]]) -> str:
    """Return the log to read: the conventional one, unless the journal has the job in one other log only.

    Raises:
        ConfigurationError: The job is in several logs.
    """
    usual = f"goodput_{job}"
    found = sorted(log for log, jobs in logs.items() if job in jobs)
    if usual in found or not found:
        return usual
    if len(found) > 1:
        raise ConfigurationError(f"the job {job!r} is in several logs; choose one with --logger: {_listed(found)}")
    return found[0]


def _hints(job: str, log: str, logs: Mapping[str, set[str]]) -> list[str]:
    """Return hints for a user who gave an unknown job."""
    from ml_diagnostics_common.environment import diagnostics_directory

    if job in logs.get(log, ()):
        return []  # It exists: the error contains what is missing.
    other_logs = sorted(other for other, jobs in logs.items() if job in jobs)
    if other_logs:
        return [f"The journal has this job in other logs: {_listed(other_logs)}. Give one of these as --logger."]
    names = sorted(set().union(*logs.values()))
    if not names:
        return [_empty_journal()]
    from difflib import get_close_matches  # Only here: most users spell the name right.

    lower = {name.lower(): name for name in names}
    similar = [lower[name] for name in get_close_matches(job.lower(), lower, n=3)]
    return [
        *([f"Did you mean {_listed(similar)}?"] if similar else []),
        f"The journal {diagnostics_directory() / 'journal'} has these jobs: {_listed(names)}.",
    ]


def _empty_journal() -> str:
    from ml_diagnostics_common.environment import diagnostics_directory

    return (
        f"The journal {diagnostics_directory() / 'journal'} is empty: no job was recorded on this machine with this "
        "ML_DIAGNOSTICS_DIR."
    )


def _listed(names: Iterable[str]) -> str:
    from ml_diagnostics_common.texts import one_line

    shown = sorted(names)
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(one_line(name, 80) for name in shown[:_NAMES_SHOWN]) + more


if __name__ == "__main__":
    import sys

    sys.exit(main())
