"""The command `goodput`: where did the training job's time go.

    goodput report JOB [--logger NAME] [--format table|json] [--plot FILE.png] [--exclude FILE.json]

Standard output is data, standard error the rest. Exit codes: 0 the report is there; 1 there is no such job, nothing
was recorded for it, or something could not be read or written; 2 the command, or what is in the file of exclusions,
was not understood.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError
from ml_diagnostics_common.journal import jobs_by_log, newest_job

from ml_goodput_measurement._version import __version__
from ml_goodput_measurement.exclusion_file import Exclusion, read_exclusions
from ml_goodput_measurement.report import format_json, format_text, one_line

__all__ = ["main"]

_EPILOG = "exit codes: 0 ok, 1 no such job or nothing recorded, 2 the command was not understood"
_PICTURES = (".png", ".svg", ".pdf")
_NAMES_SHOWN = 20
_LAST = "last"
_LOGS_OF_OTHERS = ("ml_diagnostics_metric", "tpu.googleapis.com/runtime_monitor")
"""Of our other libraries: they name the same jobs, and tell nothing of goodput."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        return _report(options.job, options.logger, options.format, options.plot, options.exclude)
    except BrokenPipeError:  # whoever reads our output, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DiagnosticsError, OSError) as error:
        print(f"goodput: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="goodput", description="Where did the training job's time go.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    report = commands.add_parser("report", help="tell where a job's time went", epilog=_EPILOG)
    report.add_argument(
        "job",
        metavar="JOB",
        help="the job's name, as its recorder was given it; last: the job that started last on this machine",
    )
    report.add_argument(
        "--logger",
        metavar="NAME",
        help="the log that it was recorded in (default: goodput_JOB, else the only log of this job in the journal)",
    )
    report.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")
    report.add_argument("--plot", metavar="FILE.png", type=_picture, help="draw the job's timeline, too")
    report.add_argument(
        "--exclude",
        metavar="FILE.json",
        type=_exclusions,
        default=[],
        help='leave out time: [{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "..."}, ...]',
    )
    return parser


def _picture(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(f"expected a file name that ends in {', '.join(_PICTURES)}, got {name!r}")
    return path


def _exclusions(name: str) -> list[Exclusion]:
    try:
        return read_exclusions(name)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _report(job: str, logger: str | None, form: str, picture: Path | None, exclusions: Sequence[Exclusion]) -> int:
    from ml_goodput_measurement.calculator import GoodputCalculator
    from ml_goodput_measurement.exceptions import NoGoodputError

    logs = {log: jobs for log, jobs in jobs_by_log(diagnostics_directory()).items() if log not in _LOGS_OF_OTHERS}
    if job == _LAST and not any(job in jobs for jobs in logs.values()):
        newest = newest_job(diagnostics_directory(), except_logs=_LOGS_OF_OTHERS)
        if newest is None:
            raise NoGoodputError(f"there is no last job. {_empty_journal()}")
        logger, job = logger or newest[0], newest[1]
    log = logger or _log_of(job, logs)
    try:
        calculator = GoodputCalculator(job, log)
        report = calculator.report(include_timeline=picture is not None, exclusions=exclusions)
    except NoGoodputError as error:
        raise NoGoodputError("\n  ".join([str(error), *_hints(job, log, logs)])) from None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A name may have letters that the terminal has not.
    print(format_json(report) if form == "json" else format_text(report), end="", flush=True)
    if picture is not None:
        from ml_goodput_measurement.plot import plot_timeline

        plot_timeline(report, picture)
    return 0


def _log_of(job: str, logs: Mapping[str, set[str]]) -> str:
    """Returns the log to read: the conventional one, unless the journal has the job in one other log only.

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
    """Return what the journal says to a user who asked for a job of which nothing is known."""
    if job in logs.get(log, ()):
        return []  # It is there: the error says what is missing.
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
    return (
        f"The journal {diagnostics_directory() / 'journal'} is empty: no job was recorded on this machine with this "
        "ML_DIAGNOSTICS_DIR."
    )


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(one_line(name, 80) for name in shown[:_NAMES_SHOWN]) + more
