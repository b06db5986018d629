"""The subcommands of `mldiagnostics`, and the options that several of them have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from google_cloud_mldiagnostics._reading.run_source import RunSource

__all__ = ["add_run_argument", "add_source_options", "run_source"]


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add the run that a command is about."""
    parser.add_argument("run", metavar="RUN", help="the run's id, the start of it if no other id has it, or 'last'")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add where runs are searched for."""
    parser.add_argument(
        "--project", metavar="PROJECT", help="search in this Google Cloud project (default: on this machine)"
    )
    parser.add_argument("--region", metavar="REGION", help="search in this region (default: us-central1)")


def run_source(options: argparse.Namespace, console: Console) -> RunSource:
    """Return the runs of a project if one is given, else those of this machine.

    Raises:
        ConfigurationError: The value of ML_DIAGNOSTICS_BACKEND is not valid.
        CredentialsError: A project or a region is given, and there are no credentials.
    """
    from ml_diagnostics_common.environment import configured_backend

    from google_cloud_mldiagnostics._reading.run_source import CloudSource, LocalSource

    configured_backend()  # Reject an invalid value also if only this machine is read, as the other commands do.
    if options.project or options.region:
        return CloudSource(options.project, options.region, console.warn, console.notify)
    return LocalSource(console.warn)
