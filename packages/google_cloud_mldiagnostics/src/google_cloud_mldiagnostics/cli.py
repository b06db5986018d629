"""The command `mldiagnostics`: runs, what they recorded, and profiles of them. Also `python -m` of this module."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from ml_diagnostics_common.command.program import Command, Program

from google_cloud_mldiagnostics._version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments after `mldiagnostics`; None takes those of this process.
    """
    description = "Runs of training jobs, what they recorded, and profiles of them."
    return Program("mldiagnostics", description, __version__, _commands).main(arguments)


def _commands() -> Iterator[Command]:
    from google_cloud_mldiagnostics._cli.kubernetes import KubernetesCommand
    from google_cloud_mldiagnostics._cli.metrics import MetricsCommand
    from google_cloud_mldiagnostics._cli.profile import ProfileCommand
    from google_cloud_mldiagnostics._cli.runs import RunsCommand, ShowCommand
    from google_cloud_mldiagnostics._cli.sync import SyncCommand

    yield from (RunsCommand(), ShowCommand(), MetricsCommand(), ProfileCommand(), SyncCommand(), KubernetesCommand())
    from google_cloud_mldiagnostics._cli.further_commands import further_commands

    yield from further_commands()


if __name__ == "__main__":
    sys.exit(main())
