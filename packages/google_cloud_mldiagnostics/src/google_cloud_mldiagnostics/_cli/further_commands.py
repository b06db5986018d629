"""Subcommands of other distributions, found by the entry point group `ml_diagnostics.commands`.

Each entry point is a class without arguments that is a `command.program.Command`. Subcommands of a distribution of ours
that is not installed are listed all the same, and print how to install it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.command.program import Command

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["GROUP", "further_commands"]

GROUP: Final = "ml_diagnostics.commands"
_CONSOLE: Final = "ml-diagnostics-console"
_OF_CONSOLE: Final = {
    "doctor": "find out why a job waits, was retried, is slow, is stuck or failed, with proof",
    "export": "write a run as one HTML file that opens anywhere",
    "logs": "show the last lines that the processes of a job printed",
    "ssh": "open a shell on a host of a job",
    "release": "let a host go that is held for debugging",
    "simulate": "run a job's manifest on this machine",
    "ui": "open the page of runs",
}


def further_commands() -> Iterator[Command]:
    """Yield the subcommands of other distributions, by name; one that cannot be loaded reports why if it runs."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted({*found, *_OF_CONSOLE}):
        if name in found:
            yield _loaded(found[name])
        else:
            yield _MissingCommand(name, _OF_CONSOLE[name], f"install it with: pip install {_CONSOLE}")


def _loaded(point: EntryPoint) -> Command:
    try:
        command: Command = point.load()()
        command.prepare_parser(argparse.ArgumentParser())  # Here, where a failure costs this command alone.
    except Exception as error:  # Of another distribution, perhaps of another version: the other commands go on.
        reason = f"{point.value} cannot be loaded ({type(error).__name__}: {error})"
        return _MissingCommand(point.name, "cannot be loaded", reason)
    return command


class _MissingCommand:
    """A subcommand that is not installed.

    Args:
        name: Its name.
        summary: Its description.
        reason: The reason, with what to do.
    """

    def __init__(self, name: str, summary: str, reason: str) -> None:
        self.name, self.summary, self._reason = name, summary, reason

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Accept any arguments."""
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Report the reason.

        Raises:
            CommandError: Always.
        """
        raise CommandError(f"`mldiagnostics {self.name}` is not available: {self._reason}")
