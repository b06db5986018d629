"""The command `goodput`: how a training job spent its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ml_diagnostics_common.command.further_commands import further_commands
from ml_diagnostics_common.command.program import Command, Program

from ml_goodput_measurement._cli.advise_command import AdviseCommand, WhatIfCommand
from ml_goodput_measurement._cli.compare_command import CompareCommand
from ml_goodput_measurement._cli.export_command import ExportCommand
from ml_goodput_measurement._cli.list_command import ListCommand
from ml_goodput_measurement._cli.mirror_command import MirrorCommand
from ml_goodput_measurement._cli.report_command import ReportCommand
from ml_goodput_measurement._cli.watch_command import WatchCommand
from ml_goodput_measurement._version import __version__

__all__ = ["main"]

_GROUP = "ml_goodput_measurement.commands"
"""The entry points of subcommands that other distributions have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `goodput`; None takes those of this process.
    """
    return Program("goodput", "How a training job spent its time.", __version__, _commands).main(arguments)


def _commands() -> Iterator[Command]:
    yield ReportCommand()
    yield ListCommand()
    yield WatchCommand()
    yield CompareCommand()
    yield AdviseCommand()
    yield WhatIfCommand()
    yield ExportCommand()
    yield MirrorCommand()
    yield from further_commands("goodput", _GROUP, "ml-diagnostics-fleet", {"fleet": "sum the goodput of many jobs"})


if __name__ == "__main__":
    import sys

    sys.exit(main())
