"""What a subcommand is, and the options that several of them have."""

from __future__ import annotations

import argparse
from typing import Final, Protocol

__all__ = ["EXIT_CODES", "NOT_DONE", "OK", "Command", "add_place_options", "format_option", "run_argument"]

OK: Final = 0
NOT_DONE: Final = 1
EXIT_CODES: Final = "exit codes: 0 ok, 1 it could not be done, or there is no such thing, 2 it was not understood"


class Command(Protocol):
    """One subcommand.

    Attributes:
        name: As it is typed.
        summary: What it does, in a line.
    """

    name: str
    summary: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Does it, and returns the exit code.

        Raises:
            DiagnosticsError: It could not be done; the message says why, and what to do.
            OSError: A file could not be read or written.
        """
        ...


def run_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the run that a command is about."""
    parser.add_argument("run", metavar="RUN", help="the run's id, as much of its beginning as no other has, or 'last'")


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Adds where runs are looked for."""
    parser.add_argument(
        "--project", metavar="PROJECT", help="look in this Google Cloud project (default: on this machine)"
    )
    parser.add_argument("--region", metavar="REGION", help="look in this region of the project (default: us-central1)")


def format_option(parser: argparse.ArgumentParser, *choices: str) -> None:
    """Adds how the answer is written, a table by default."""
    parser.add_argument("--format", choices=("table", *choices), default="table", help="default: %(default)s")
