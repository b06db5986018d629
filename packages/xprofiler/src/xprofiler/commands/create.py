"""`xprofiler create`: a VM, or a deployment on GKE, that hosts XProf for a log directory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from xprofiler.arguments import seconds

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["CreateCommand"]

_DEFAULT_MACHINE_TYPE = "c4-highmem-8"


class CreateCommand:
    """Creates a viewer."""

    name = "create"
    summary = "create a VM that hosts XProf for a log directory"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""
        add = parser.add_argument
        add("-l", "--log-directory", metavar="GS_PATH", required=True, help="what it shows: gs://bucket/path")
        add("-z", "--zone", metavar="ZONE_NAME", required=True, help="where to create it")
        add("-n", "--vm-name", metavar="VM_NAME", help="its name (default: xprof- and a random id)")
        add(
            "-m",
            "--machine-type",
            metavar="MACHINE_TYPE",
            default=_DEFAULT_MACHINE_TYPE,
            help="the VM's machine type (default: %(default)s)",
        )
        add("--ttl", metavar="DURATION", help="have Compute delete the VM after that long: 90m, 8h, 2d")
        add(
            "--timeout",
            metavar="SECONDS",
            type=seconds,
            default=300.0,
            help="how long XProf may take (default: %(default)g)",
        )
        add(
            "--auto-delete-on-failure-off",
            action="store_true",
            help="keep the VM when it could not be set up, to look into it",
        )
        add("--skip-creation-if-exists", action="store_true", help="create none where there is one already")
        add("--gke", action="store_true", help="create it on the current Kubernetes cluster")
        add("-q", "--quiet", action="store_true", help="ask nothing: create another one where there is one")
        add("--dry-run", action="store_true", help="print the command that would do the same, and do nothing")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Create it, and says how to reach it."""
        from xprofiler.viewers.creation import create

        return create(options, console)
