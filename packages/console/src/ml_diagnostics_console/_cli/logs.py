"""`mldiagnostics logs`: what the processes of a job printed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import UsageError
from ml_diagnostics_common.command.options import seconds, whole_number

from ml_diagnostics_console._cli.questions import add_question_options, job_reader

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["LogsCommand"]


class LogsCommand:
    """Shows lines."""

    name = "logs"
    summary = "show the last lines that the processes of a job printed"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_question_options(parser)
        parser.add_argument(
            "--host", metavar="HOST", default="", help="only this host (default: the one that failed first)"
        )
        parser.add_argument(
            "--process", metavar="INDEX", type=whole_number(0, 10**9), help="only the process with this index"
        )
        parser.add_argument("--stream", choices=("out", "err"), default="", help="only stdout or stderr")
        parser.add_argument(
            "--around",
            metavar="'step N'|TIME",
            default="",
            help="the lines of all processes around a step, a time of day in UTC (16:02:11), or a time (RFC 3339)",
        )
        parser.add_argument(
            "--window",
            metavar="DURATION",
            type=seconds,
            default=30.0,
            help="how long a time --around shows (default: 30s)",
        )
        parser.add_argument("--follow", action="store_true", help="print what is new every 10 s, until the job ends")
        parser.add_argument(
            "--full", action="store_true", help="all that is kept, not only the last 4096 bytes of each stream"
        )

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print lines, and return the exit code."""
        from ml_diagnostics_common.environment import diagnostics_directory

        from ml_diagnostics_console._logs.showing import Choice, Showing

        if options.around and options.follow:
            raise UsageError("--follow shows what is new, and --around a moment that is past: give one of them")
        reader = job_reader(options, console)
        choice = Choice(options.host, options.process, options.stream, options.full)
        showing = Showing(reader.read(), choice, diagnostics_directory(), console)
        if options.around:
            return showing.show_around(options.around, options.window)
        return showing.follow(reader.read) if options.follow else showing.show_last()
