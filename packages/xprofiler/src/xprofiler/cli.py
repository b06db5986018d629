"""The command `xprofiler`. Options that it does not know go to gcloud, where a subcommand uses it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, Protocol

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import UsageError
from ml_diagnostics_common.command.program import Command, Program

from xprofiler._version import __version__

__all__ = ["COMMAND_NAMES", "main", "notify_if_slow"]

COMMAND_NAMES: Final = ("create", "list", "delete", "connect", "capture", "serve", "summary", "register", "completion")
"""Each is a module of `commands` with a class `<Name>Command`."""


class _XprofilerCommand(Command, Protocol):
    """A subcommand.

    Attributes:
        passes_on: True if unknown options are passed to gcloud, as `options.extra`.
    """

    passes_on: bool


class _Xprofiler(Program):
    """The program, with options for gcloud."""

    def make_parser(self) -> argparse.ArgumentParser:
        """Return the parser, with the public command's option without an effect."""
        parser = super().make_parser()
        parser.add_argument("-a", "--abbrev", action="store_true", help="accepted for compatibility; has no effect")
        return parser

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that all subcommands have."""
        super().add_options(parser)
        parser.add_argument("-v", "--verbose", action="store_true", help="print every request and every command line")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse the arguments; `options.extra` has those for gcloud."""
        before, after = split_arguments(arguments)
        parser = self.make_parser()
        options, unknown = parser.parse_known_args(before)
        command: _XprofilerCommand | None = options.command
        if command is None:
            self.refuse_unknown(parser, unknown)
            parser.print_help()  # As the public command does.
            parser.exit()
        if command.passes_on:
            self.refuse_misspelled(options.parser, unknown)
        else:
            self.refuse_unknown(options.parser, unknown)
            if after:
                options.parser.error(f"{command.name} does not use gcloud: remove -- and the arguments after it")
        try:
            options.extra = flags_for_gcloud(unknown, after, options.parser._option_string_actions)
        except UsageError as error:
            options.parser.error(str(error))
        return options

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run the subcommand, and return its exit code."""
        with _requests_logged(console):
            return super().run(options, console)


def _commands() -> Iterator[Command]:
    for name in COMMAND_NAMES:
        module = importlib.import_module(f"xprofiler.commands.{name}")
        yield getattr(module, f"{name.capitalize()}Command")()


PROGRAM: Final = _Xprofiler(
    "xprofiler",
    "Host XProf for a log directory, and capture profiles of many hosts at the same moment.",
    __version__,
    _commands,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `xprofiler`; None takes those of this process.
    """
    return PROGRAM.main(arguments)


def split_arguments(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments at the first `--`, which is dropped."""
    arguments = list(typed)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def flags_for_gcloud(unknown: Sequence[str], after: Sequence[str], ours: Collection[str]) -> list[str]:
    """Return the arguments for gcloud, each a flag with its value.

    Positional arguments are rejected, since gcloud would take them for names of VMs that the user was not asked about.

    Args:
        unknown: Unknown arguments before `--`.
        after: The arguments after it.
        ours: The flags of the command itself.

    Raises:
        UsageError: An argument belongs to no flag, or a flag is one of ours.
    """
    short = [argument for argument in unknown if argument.startswith("-") and not argument.startswith("--")]
    if short:
        raise UsageError(f"unknown option {short[0]}; put options for gcloud after --")
    flags: list[str] = []
    awaits_value = False
    for argument in (*unknown, *after):
        if argument.startswith("-") and argument != "--":
            flag = argument.partition("=")[0]
            if flag in ours:
                raise UsageError(
                    f"{flag} cannot be passed to gcloud: it is an option of this command; put it before --"
                )
            flags.append(argument)
            awaits_value = argument.startswith("--") and "=" not in argument
        elif awaits_value and argument != "--":
            flags[-1] += f"={argument}"
            awaits_value = False
        else:
            raise UsageError(
                f"{argument!r} belongs to no option: only flags are passed to gcloud, --flag or --flag=value"
            )
    return flags


def _requests_logged(console: Console) -> AbstractContextManager[None]:
    if not console.is_verbose:
        return nullcontext()
    from xprofiler.gcloud.api import log_requests

    return log_requests(console)


@contextmanager
def notify_if_slow(console: Console, text: str, after_seconds: float = 4.0) -> Iterator[None]:
    """Print a message once if the block takes longer than a delay.

    Args:
        console: Receives the message.
        text: The message.
        after_seconds: The delay.
    """
    import threading

    from ml_diagnostics_common.worker import start

    is_over = threading.Event()

    def notify() -> None:
        if not is_over.wait(after_seconds):
            with suppress(OSError):
                console.notify(text)

    start(notify, "xprofiler-notice")
    try:
        yield
    finally:
        is_over.set()
