"""Subcommands of other distributions, found by the entry point group `ml_diagnostics.commands`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ml_diagnostics_common.command import further_commands as common
from ml_diagnostics_common.command.program import Command

__all__ = ["GROUP", "further_commands"]

GROUP: Final = "ml_diagnostics.commands"
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
    return common.further_commands("mldiagnostics", GROUP, "ml-diagnostics-console", _OF_CONSOLE)
