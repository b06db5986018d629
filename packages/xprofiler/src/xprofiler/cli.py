"""The command `xprofiler`: its parser, and exit codes for errors.

Data goes to standard output, everything else to standard error. `exceptions` lists the exit codes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TextIO

from xprofiler._version import __version__
from xprofiler.command import Command
from xprofiler.exceptions import DONE, EXIT_CODES, INTERRUPTED, UsageError, exit_code_of
from xprofiler.unknown_options import flags_for_gcloud, nearest_flag, split_arguments

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["COMMAND_NAMES", "main", "make_parser"]

COMMAND_NAMES: Final = ("create", "list", "delete", "connect", "capture", "serve", "summary", "register", "completion")
"""Each is a module of `commands` with a class `<Name>Command`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `xprofiler`; None takes those of this process.
    """
    is_own_process = arguments is None
    typed = list(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser()
    before, after = split_arguments(typed)
    options, unknown = parser.parse_known_args(before)
    command: Command | None = options.command
    if command is None:
        _refuse_unknown(parser, unknown, passes_on=False)
        parser.print_help()
        return DONE
    _refuse_unknown(options.parser, unknown, passes_on=command.passes_on)
    if after and not command.passes_on:
        options.parser.error(f"{command.name} does not use gcloud: remove -- and the arguments after it")
    try:
        options.extra = flags_for_gcloud(unknown, after, _flags_of(options.parser))
    except UsageError as error:
        options.parser.error(str(error))
    return _run(command, options, is_own_process=is_own_process)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser. Its results have the subcommand as `command`, and the subcommand's parser as `parser`."""
    parser = argparse.ArgumentParser(
        prog="xprofiler",
        description="Host XProf for a log directory, and capture profiles of many hosts at the same moment.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("-a", "--abbrev", action="store_true", help="accepted for compatibility; has no effect")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for name in COMMAND_NAMES:
        command = _command(name)
        subparser = subparsers.add_parser(
            name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=EXIT_CODES,
            allow_abbrev=False,
        )
        command.prepare_parser(subparser)
        subparser.add_argument(
            "-v", "--verbose", action="store_true", help="print every request and every command line"
        )
        subparser.set_defaults(command=command, parser=subparser)
    return parser


def _command(name: str) -> Command:
    module = importlib.import_module(f"xprofiler.commands.{name}")
    command: Command = getattr(module, f"{name.capitalize()}Command")()
    return command


def _refuse_unknown(parser: argparse.ArgumentParser, unknown: Sequence[str], *, passes_on: bool) -> None:
    """Exit with code 2 if an option is a near miss of ours, or if the command does not pass options to gcloud."""
    for option in unknown:
        near = nearest_flag(option, _flags_of(parser))
        if near:
            parser.error(f"unknown option {option}: did you mean {near}?")
    if unknown and not passes_on:
        parser.error(f"unknown: {' '.join(unknown)}")


def _flags_of(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings]


def _run(command: Command, options: argparse.Namespace, *, is_own_process: bool) -> int:
    import gc
    import warnings

    from ml_diagnostics_common.exceptions import DiagnosticsError

    from xprofiler.console import Console, ReaderGoneError
    from xprofiler.interrupts import all_as_keyboard_interrupt

    if is_own_process:
        gc.disable()  # No reference cycles here; collection takes a tenth of a short command's time.
        if not sys.warnoptions:  # Google's clients warn of old Pythons, which is not for users.
            warnings.simplefilter("ignore")
    console = Console(is_verbose=options.verbose, is_quiet=getattr(options, "quiet", False))
    try:
        with all_as_keyboard_interrupt(), _requests_logged(console):
            return command.run(options, console)
    except UsageError as error:
        _print_last(console, f"{options.parser.format_usage()}xprofiler: {error}")
        return error.exit_code
    except ReaderGoneError:  # The reader of the pipe, such as `head`, has exited.
        _redirect_to_null(sys.stdout)
        return DONE
    except KeyboardInterrupt:
        _print_last(console, "interrupted")
        return INTERRUPTED
    except (DiagnosticsError, OSError) as error:
        _print_last(console, f"xprofiler: {error}")
        return exit_code_of(error)


def _requests_logged(console: Console) -> AbstractContextManager[None]:
    if not console.is_verbose:
        return nullcontext()
    from xprofiler.cloud.request_log import log_requests

    return log_requests(console)


def _print_last(console: Console, text: str) -> None:
    """Print a message, unless standard error is closed, as with its terminal."""
    try:
        console.notify(text)
    except OSError:
        _redirect_to_null(sys.stderr)


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect a broken stream, since Python flushes it at exit and would replace the exit code by an error."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
