"""`xprofiler delete`: delete viewers of a zone, by log directory or name, after a confirmation for each."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import (
    DONE,
    CommandError,
    DeclinedError,
    NotFoundError,
    UsageError,
    exit_code_of,
)

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.viewers.viewer import Sought, Viewer, Viewers

__all__ = ["DeleteCommand"]


class DeleteCommand:
    """Deletes viewers."""

    name = "delete"
    summary = "delete VMs that host XProf"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("-z", "--zone", metavar="ZONE_NAME", help="the zone of the VMs (default: gcloud's zone)")
        parser.add_argument(
            "-l", "--log-directory", metavar="GS_PATH", nargs="+", default=[], help="VMs of these log directories"
        )
        parser.add_argument("-n", "--vm-name", metavar="VM_NAME", nargs="+", default=[], help="VMs with these names")
        parser.add_argument("--gke", action="store_true", help="viewers on the current Kubernetes cluster")
        parser.add_argument("-q", "--quiet", dest="assumes_yes", action="store_true", help="ask nothing")
        parser.add_argument("--dry-run", action="store_true", help="print the equivalent commands, and delete nothing")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Delete the viewers that are found and confirmed.

        Raises:
            UsageError: Neither a name nor a log directory is given.
            DeclinedError: No deletion was confirmed.
        """
        from xprofiler.gcloud.api import GoogleApi
        from xprofiler.gcloud.settings import GcloudSettings
        from xprofiler.log_directory import LogDirectory
        from xprofiler.viewers.viewer import Sought, format_viewers

        if not (options.vm_name or options.log_directory):
            raise UsageError("Either --vm-name or --log-directory must be specified.")
        directories = [LogDirectory.parse(text).path for text in options.log_directory]
        api = GoogleApi(GcloudSettings.load(), console)
        zone = api.settings.zone_or_default(options.zone)
        sought = Sought([zone], directories, options.vm_name)
        viewers, found = _found(options, sought, api)
        if not found:
            console.notify(f"No {viewers.noun}(s) to delete.", is_progress=False)
            return NotFoundError.exit_code
        try:
            console.data(f"Found {len(found)} {viewers.noun}(s) to delete.\n{format_viewers(found)}")
        except BrokenPipeError as error:
            raise CommandError("nothing was deleted: the reader of the list has exited") from error
        if options.dry_run:
            console.data("\n".join(["", *map(shlex.join, viewers.delete_argv(found))]))
            return DONE
        failures = _delete_confirmed(console, viewers, found)
        missing = [*sorted(set(directories) - {one.log_directory for one in found})]
        missing += sorted(set(options.vm_name) - {one.name for one in found})
        if missing:
            failures.append(
                NotFoundError(f"no {viewers.noun} in {zone} has the log directory or name {', '.join(missing)}")
            )
        return _report_failures(failures, console)


def _found(options: argparse.Namespace, sought: Sought, api: GoogleApi) -> tuple[Viewers, list[Viewer]]:
    """Return the interface to delete with, and the viewers that match."""
    if options.gke:
        from xprofiler.viewers.on_gke import ViewersOnGke

        on_gke = ViewersOnGke(api.console, options.extra)
        return on_gke, on_gke.find(sought)
    from xprofiler.viewers.on_compute import flags_of_all_commands, viewers_on_compute

    # A search gets no flags of gcloud that are only valid for deletions.
    search = viewers_on_compute(api, sought, flags_of_all_commands(options.extra))
    return viewers_on_compute(api, sought, options.extra), search.find(sought)


def _delete_confirmed(console: Console, viewers: Viewers, found: Sequence[Viewer]) -> list[Exception]:
    """Ask about each viewer, delete the confirmed ones in parallel, and return the failures.

    Raises:
        DeclinedError: No deletion was confirmed.
    """
    confirmed = []
    for viewer in found:
        question = f"\nDo you want to continue to delete the {viewers.noun} `{viewer.name}`?\nEnter y/n: "
        if console.confirms(question):
            console.notify(f"Will delete {viewers.noun} `{viewer.name}`")
            confirmed.append(viewer)
        else:
            console.notify(f"Keep {viewers.noun} `{viewer.name}`")
    if not confirmed:
        raise DeclinedError("nothing was deleted")
    try:
        outcomes = viewers.delete(confirmed)
    except KeyboardInterrupt:
        names = " ".join(viewer.name for viewer in confirmed)
        console.notify(f"\n{names} may still be deleted; check with: xprofiler list -n {names}", is_progress=False)
        raise
    return [outcome for outcome in outcomes if outcome and not isinstance(outcome, NotFoundError)]


def _report_failures(failures: Sequence[Exception], console: Console) -> int:
    """Print each failure once, and return the exit code: 1 if the failures have different ones."""
    for text in dict.fromkeys(map(str, failures)):
        console.warn(text)
    codes = {exit_code_of(failure) for failure in failures} or {DONE}
    return codes.pop() if len(codes) == 1 else CommandError.exit_code
