"""The options that commands about one job have, and the reader that they choose."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import UsageError

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_console._facts.reading import JobReader

__all__ = ["add_host_argument", "add_question_options", "add_source_options", "attempt_of", "job_reader"]


def add_question_options(parser: argparse.ArgumentParser) -> None:
    """Add the job, and where it is read."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the run's id, the start of it, 'last', or the name of a job or workload without a run",
    )
    parser.add_argument("--attempt", metavar="N", default="", help="this attempt (default: the last one)")
    add_source_options(parser)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add where the job is read."""
    parser.add_argument(
        "--kubernetes", metavar="CONTEXT|off", default="", help="kubectl's context (default: the current one)"
    )
    parser.add_argument("--project", metavar="PROJECT", help="read this Google Cloud project (default: this machine)")
    parser.add_argument("--region", metavar="REGION", help="the region of the run (default: us-central1)")


def add_host_argument(parser: argparse.ArgumentParser) -> None:
    """Add the host of the job."""
    parser.add_argument("host", metavar="HOST", help="the name of the host or pod, or the index of a process")


def attempt_of(text: str, *, may_be_all: bool = False) -> int | None:
    """Return the number of an attempt; None for the last one, and for all.

    Args:
        text: The option.
        may_be_all: True if it may be `all`.

    Raises:
        UsageError: It is not a number from 1.
    """
    if not text or (may_be_all and text == "all"):
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
        other = ", or 'all'" if may_be_all else ""
        raise UsageError(f"--attempt is {text!r}; give a number from 1{other}")
    return int(text)


def job_reader(
    options: argparse.Namespace,
    console: Console,
    name: str = "",
    *,
    may_be_all: bool = False,
    records_cluster: bool = False,
) -> JobReader:
    """Return the reader of the job.

    Args:
        options: The options of the command.
        console: The terminal.
        name: The run or job; empty for the argument `run`.
        may_be_all: True if the attempt may be `all`.
        records_cluster: See `JobReader`.

    Raises:
        UsageError: The attempt is not a number.
        ConfigurationError: The value of ML_DIAGNOSTICS_BACKEND is not valid.
        CredentialsError: A project is given, and there are no credentials.
    """
    from ml_diagnostics_common.environment import configured_backend

    from ml_diagnostics_console._facts.reading import JobReader, Question

    configured_backend()  # Reject an invalid value also if only this machine is read, as the other commands do.
    attempt = attempt_of(options.attempt, may_be_all=may_be_all)
    question = Question(name or options.run, attempt, options.project, options.region, options.kubernetes)
    return JobReader(question, console.warn, records_cluster=records_cluster)
