"""The entry point of every command: parser, signals, broken pipes and exit codes are the same for all.

Data goes to standard output, everything else to standard error. `errors` lists the exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TextIO

from ml_diagnostics_common.command.console import Console, ReaderGoneError, data_errors
from ml_diagnostics_common.command.errors import (
    DONE,
    EXIT_CODES,
    FAILED,
    INTERRUPTED,
    CommandError,
    UsageError,
    exit_code_of,
)
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.interrupts import signals_as_keyboard_interrupt, waits_woken

__all__ = ["Command", "Program", "edits", "nearest_flag"]

_SHELLS = ("bash", "zsh", "fish", "tcsh")
_MOST_EDITS = 2


class Command(Protocol):
    """One subcommand. Its module imports only what `--help` needs, which keeps start-up fast.

    Attributes:
        name: The name on the command line.
        summary: A description of one line.
    """

    name: str
    summary: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the subcommand."""
        ...

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the subcommand, and return the exit code.

        Raises:
            DiagnosticsError: The command failed; `errors.exit_code_of` has the exit code.
            OSError: A file could not be read or written.
        """
        ...


class Program:
    """A program with subcommands.

    Args:
        name: The name of the program.
        description: Its purpose, in one sentence.
        version: Its version.
        commands: Returns the subcommands; called once for each command line.
    """

    def __init__(self, name: str, description: str, version: str, commands: Callable[[], Iterable[Command]]) -> None:
        self._name = name
        self._description = description
        self._version = version
        self._commands = commands

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run a command line, and return its exit code.

        Args:
            arguments: The arguments after the program's name; None takes those of this process, which then ends.
        """
        is_own_process = arguments is None
        if is_own_process:
            _prepare_process()
        console = Console(self._name)
        options = argparse.Namespace()
        try:
            with signals_as_keyboard_interrupt(), _flushed_output():
                options = self.parse(list(sys.argv[1:] if arguments is None else arguments))
                _configure(console, options)
                with waits_woken():
                    return self.run(options, console)
        except UsageError as error:
            _print_last(console, f"{options.parser.format_usage()}{self._name}: {error}")
            return error.exit_code
        except ReaderGoneError:  # The reader of the pipe, such as `head`, has exited.
            _redirect_to_null(sys.stdout)
            return DONE
        except KeyboardInterrupt:
            if is_own_process:
                _let_interrupt_end()
                _redirect_to_null(sys.stdout)  # The reader may have stopped reading, and Python flushes at exit.
            _print_last(console, "interrupted")
            return INTERRUPTED
        except BrokenPipeError:  # The reader of standard error has exited, and cannot receive a message.
            _redirect_to_null(sys.stderr)
            return FAILED
        except (DiagnosticsError, OSError) as error:
            _print_last(console, f"{self._name}: {_message_of(error)}")
            return exit_code_of(error)
        finally:
            if is_own_process:
                _let_interrupt_end()

    def make_parser(self) -> argparse.ArgumentParser:
        """Return the parser. Its results have the subcommand as `command`, and the subcommand's parser as `parser`."""
        parser = _Parser(prog=self._name, description=self._description, epilog=EXIT_CODES, allow_abbrev=False)
        parser.add_argument("--version", action="version", version=f"%(prog)s {self._version}")
        parser.add_argument(
            "--print-completion", action=_PrintCompletion, metavar="SHELL", choices=_SHELLS, program=self,
            help=f"print a script that completes this command in a shell: {', '.join(_SHELLS)}",
        )  # fmt: skip
        parser.set_defaults(command=None, parser=parser)
        subparsers = parser.add_subparsers(metavar="COMMAND")
        for command in self._commands():
            description = f"{command.summary[0].upper()}{command.summary[1:]}."
            subparser = subparsers.add_parser(
                command.name, help=command.summary, description=description, epilog=EXIT_CODES, allow_abbrev=False
            )
            command.prepare_parser(subparser)
            self.add_options(subparser)
            subparser.set_defaults(command=command, parser=subparser)
        return parser

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that all subcommands have, to the parser of one."""
        if "--quiet" not in parser._option_string_actions:
            parser.add_argument("--quiet", action="store_true", help="print no progress, only data and errors")
        parser.add_argument("--no-color", action="store_true", help="print no colors (as with NO_COLOR)")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse the arguments, or exit with code 2 and a suggestion for an option that is not valid."""
        parser = self.make_parser()
        options, unknown = parser.parse_known_args(arguments)
        self.refuse_unknown(options.parser, unknown)
        if options.command is None:
            parser.error("a command is missing")
        return options

    def refuse_misspelled(self, parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
        """Exit with code 2 if an unknown option is a near miss of one of the parser's."""
        for option in unknown:
            near = nearest_flag(option, parser._option_string_actions)
            if near:
                parser.error(f"unknown option {option}: did you mean {near}?")

    def refuse_unknown(self, parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
        """Exit with code 2 if there are unknown arguments, with the option that was probably meant."""
        self.refuse_misspelled(parser, unknown)
        if unknown:
            parser.error(f"unknown: {' '.join(unknown)}")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the subcommand, and return its exit code."""
        code: int = options.command.run(options, console)
        return code

    def completion(self, shell: str) -> str:
        """Return the script that completes this program in a shell.

        Raises:
            CommandError: shtab is not installed.
        """
        try:
            import shtab
        except ImportError:  # Installed without dependencies, for a small image.
            raise CommandError("--print-completion needs shtab; install it with: pip install shtab") from None

        parser = self.make_parser()
        for action in (action for one in _with_parts(parser) for action in one._actions):
            if re.search("PATH|FILE", str(action.metavar)):
                action.complete = shtab.FILE
        return str(shtab.complete(parser, shell))


def _with_parts(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield a parser, those of its subcommands, and those of their parts."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from _with_parts(part)


def nearest_flag(option: str, flags: Iterable[str]) -> str | None:
    """Return the long option that was probably meant; None if none is within two edits.

    Args:
        option: The option as typed, with or without `=value`.
        flags: The valid options.
    """
    name = option.partition("=")[0]
    if not name.startswith("--"):
        return None
    near = [(edits(name, flag), flag) for flag in flags if flag.startswith("--")]
    distance, flag = min(near, default=(_MOST_EDITS + 1, ""))
    return flag if distance <= _MOST_EDITS else None


class _Parser(argparse.ArgumentParser):
    """A parser that ignores a closed pipe when it prints help or an error, as every parser does from Python 3.11 on."""

    def _print_message(self, message: str, file: Any = None) -> None:
        with contextlib.suppress(OSError):  # Raised here only if the stream has no buffer.
            super()._print_message(message, file)


class _PrintCompletion(argparse.Action):
    """Prints a completion script, and exits."""

    def __init__(self, *, program: Program, **options: Any) -> None:
        super().__init__(**options)
        self._program = program

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: object = None) -> None:
        Console().data(self._program.completion(shell))
        parser.exit()


def _prepare_process() -> None:
    import gc
    import warnings

    gc.disable()  # No reference cycles here; collection takes up to a third of a command's time.
    for name in ("stdout", "stderr"):  # None if the descriptor is closed, as by >&-; print() would then use the other.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    if not sys.warnoptions:  # Google's clients warn of old Pythons, which is not for users.
        warnings.simplefilter("ignore")


def _configure(console: Console, options: argparse.Namespace) -> None:
    console.is_verbose = getattr(options, "verbose", False)
    console.is_quiet = getattr(options, "quiet", False)
    console.assumes_yes = getattr(options, "assumes_yes", False)
    console.may_use_color = not getattr(options, "no_color", False)


@contextlib.contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush after the block, or at SystemExit.

    At the interpreter's exit, a broken pipe would print an error and change the exit code.
    """
    try:
        yield
    except SystemExit:
        _flush_output()
        raise
    _flush_output()


def _flush_output() -> None:
    with data_errors():
        sys.stdout.flush()


def _let_interrupt_end() -> None:
    """End the process on Ctrl-C from here on: while the interpreter exits, Python would print a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _message_of(error: Exception) -> str:
    """Return an error's message; the system's errors on files as other commands print them, without a number."""
    if isinstance(error, DiagnosticsError) or not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"cannot access {error.filename!r}: {error.strerror}"


def _print_last(console: Console, text: str) -> None:
    """Print a message, unless standard error is closed, as with its terminal."""
    try:
        console.notify(text, is_progress=False)
    except OSError:
        _redirect_to_null(sys.stderr)


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect a broken stream, since Python flushes it at exit and would replace the exit code by an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def edits(one: str, other: str) -> int:
    """Return the least number of insertions, deletions, substitutions and swaps of neighbors between two strings.

    This is the optimal string alignment distance: https://en.wikipedia.org/wiki/Damerau-Levenshtein_distance
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        previous, before, row = before, row, [i]
        for j, its_letter in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != its_letter))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its_letter:
                cost = min(cost, previous[j - 2] + 1)
            row.append(cost)
    return row[-1]
