"""Subcommands of other distributions, found by a group of entry points.

Each entry point is a class without arguments that is a `program.Command`. Subcommands of a distribution of ours that is
not installed are listed all the same, and print how to install it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.command.program import Command

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["further_commands"]


def further_commands(program: str, group: str, distribution: str, known: Mapping[str, str]) -> Iterator[Command]:
    """Yield the subcommands of other distributions, by name; one that cannot be loaded reports why if it runs.

    Args:
        program: The name of the program.
        group: The group of the entry points.
        distribution: A distribution of ours that has subcommands.
        known: The names of these, and their descriptions.
    """
    found = {point.name: point for point in entry_points(group=group)}
    for name in sorted({*found, *known}):
        if name in found:
            yield _loaded(found[name], program)
        else:
            yield _MissingCommand(program, name, known[name], f"install it with: pip install {distribution}")


def _loaded(point: EntryPoint, program: str) -> Command:
    try:
        command: Command = point.load()()
        command.prepare_parser(argparse.ArgumentParser())  # Here, where a failure costs this command alone.
    except Exception as error:  # Of another distribution, perhaps of another version: the other commands go on.
        reason = f"{point.value} cannot be loaded ({type(error).__name__}: {error})"
        return _MissingCommand(program, point.name, "cannot be loaded", reason)
    return command


class _MissingCommand:
    """A subcommand that is not installed.

    Args:
        program: The name of the program.
        name: The name of the subcommand.
        summary: Its description.
        reason: The reason, with what to do.
    """

    def __init__(self, program: str, name: str, summary: str, reason: str) -> None:
        self.name, self.summary = name, summary
        self._program, self._reason = program, reason

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Accept any arguments."""
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Report the reason.

        Raises:
            CommandError: Always.
        """
        raise CommandError(f"`{self._program} {self.name}` is not available: {self._reason}")
