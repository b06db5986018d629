"""`xprofiler list`: the viewers of a project, by zone, log directory, name, or a filter of gcloud."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, UsageError
from ml_diagnostics_common.command.formats import add_format_option

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.viewers.viewer import Sought, Viewers

__all__ = ["ListCommand"]

_STATUS_SECONDS = 3.0  # A link is not worth a longer wait for the status of a VM.


class ListCommand:
    """Lists viewers."""

    name = "list"
    summary = "list the VMs that host XProf"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("-z", "--zones", metavar="ZONE_NAME", nargs="+", default=[], help="only in these zones")
        parser.add_argument(
            "-l", "--log-directory", metavar="GS_PATH", nargs="+", default=[], help="only of these log directories"
        )
        parser.add_argument("-n", "--vm-name", metavar="VM_NAME", nargs="+", default=[], help="only of these names")
        parser.add_argument(
            "-f",
            "--filter",
            metavar="FILTER_NAME",
            nargs="+",
            default=[],
            help="only VMs that match these filters, in the language of gcloud's --filter (needs gcloud)",
        )
        parser.add_argument("--gke", action="store_true", help="those on the current Kubernetes cluster")
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print a row for each viewer."""
        from xprofiler.cli import notify_if_slow
        from xprofiler.gcloud.api import GoogleApi
        from xprofiler.gcloud.settings import GcloudSettings
        from xprofiler.log_directory import LogDirectory
        from xprofiler.viewers.viewer import Sought, format_viewers

        directories = [LogDirectory.parse(text).path for text in options.log_directory]
        sought = Sought(options.zones, directories, options.vm_name, options.filter)
        api = GoogleApi(GcloudSettings.load(), console, role="roles/compute.viewer")
        with notify_if_slow(console, "Waiting for the list ..."):
            viewers = _viewers(options, sought, api).find(sought)
        if not options.gke and not all(viewer.url for viewer in viewers):
            from xprofiler.viewers.status import with_links

            viewers = with_links(viewers, api.storage_within(_STATUS_SECONDS))
        console.data(format_viewers(viewers, options.format))
        return DONE


def _viewers(options: argparse.Namespace, sought: Sought, api: GoogleApi) -> Viewers:
    if not options.gke:
        from xprofiler.viewers.on_compute import viewers_on_compute

        return viewers_on_compute(api, sought, options.extra)
    if sought.filters:
        raise UsageError("--filter is for VMs: with --gke, use zones, log directories or names")
    from xprofiler.viewers.on_gke import ViewersOnGke

    return ViewersOnGke(api.console, options.extra)
