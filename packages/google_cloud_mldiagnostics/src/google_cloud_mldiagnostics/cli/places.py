"""From a command's options to where runs are."""

from __future__ import annotations

import argparse

from google_cloud_mldiagnostics.cli.text import note
from google_cloud_mldiagnostics.reading.run_source import CloudSource, LocalSource, RunSource

__all__ = ["source_of"]


def source_of(options: argparse.Namespace) -> RunSource:
    """Returns the runs of a project where one was named, else those of this machine.

    Raises:
        CredentialsError: A project was named, or a region, and there are no credentials.
    """
    if options.project or options.region:
        return CloudSource(options.project, options.region, note)
    return LocalSource(note)
