"""`xprofiler create`: create a VM, or a deployment on GKE, that hosts XProf for a log directory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.options import seconds

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["CreateCommand"]

_DEFAULT_MACHINE_TYPE = "c4-highmem-8"


class CreateCommand:
    """Creates a viewer."""

    name = "create"
    summary = "create a VM that hosts XProf for a log directory"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add = parser.add_argument
        add(
            "-l",
            "--log-directory",
            metavar="GS_PATH",
            required=True,
            help="the log directory to show: gs://bucket/path",
        )
        add("-z", "--zone", metavar="ZONE_NAME", required=True, help="the zone of the VM")
        add("-n", "--vm-name", metavar="VM_NAME", help="the VM's name (default: xprof- and a random id)")
        add(
            "-m",
            "--machine-type",
            metavar="MACHINE_TYPE",
            default=_DEFAULT_MACHINE_TYPE,
            help="the VM's machine type (default: %(default)s)",
        )
        add("--ttl", metavar="DURATION", help="delete the VM after this time: 90m, 8h, 2d")
        add(
            "--timeout",
            metavar="SECONDS",
            type=seconds,
            default=300.0,
            help="the time XProf has to start (default: %(default)g)",
        )
        add(
            "--auto-delete-on-failure-off",
            action="store_true",
            help="keep the VM if it could not be set up, to inspect it",
        )
        add("--skip-creation-if-exists", action="store_true", help="create none if one exists")
        add("--gke", action="store_true", help="create it on the current Kubernetes cluster")
        add(
            "-q",
            "--quiet",
            dest="assumes_yes",
            action="store_true",
            help="ask nothing: create another one if one exists",
        )
        add("--dry-run", action="store_true", help="print the equivalent command, and do nothing")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Create the viewer, and print how to connect."""
        from xprofiler.viewers.creation import create

        return create(options, console)
