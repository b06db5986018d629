"""The command `mldiagnostics`: runs, what they recorded, and profiles of them.

Standard output is data, standard error the rest. Exit codes: 0 ok; 1 it could not be done, or there is no such run;
2 the command was not understood.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from google_cloud_mldiagnostics._version import __version__
from google_cloud_mldiagnostics.cli.command import EXIT_CODES, NOT_DONE, OK, Command
from google_cloud_mldiagnostics.cli.metrics import MetricsCommand
from google_cloud_mldiagnostics.cli.profile import ProfileCommand
from google_cloud_mldiagnostics.cli.runs import RunsCommand
from google_cloud_mldiagnostics.cli.show import ShowCommand
from google_cloud_mldiagnostics.cli.sync import SyncCommand

__all__ = ["main"]

_COMMANDS: tuple[Command, ...] = (RunsCommand(), ShowCommand(), MetricsCommand(), ProfileCommand(), SyncCommand())
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if arguments is None:  # A process of our own.
        gc.disable()  # Nothing here goes in circles, and to look for that takes a third of the time of a long run.
    # After parsing: --help needs nothing of it.
    from ml_diagnostics_common.exceptions import DiagnosticsError

    from google_cloud_mldiagnostics.cli.text import note

    try:
        code: int = options.command.run(options)
        return code
    except BrokenPipeError:  # Whoever reads our output, `head` perhaps, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (DiagnosticsError, OSError) as error:
        note(str(error))
        return NOT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mldiagnostics",
        description="Runs of training jobs, what they recorded, and profiles of them.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        subparser = subparsers.add_parser(
            command.name, help=command.summary, description=f"{command.summary.capitalize()}.", epilog=EXIT_CODES
        )
        command.prepare_parser(subparser)
        subparser.set_defaults(command=command)
    return parser
