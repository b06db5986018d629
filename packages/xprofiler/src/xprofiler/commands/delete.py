"""`xprofiler delete`: viewers of a zone, by log directory or name, each of them after a yes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xprofiler.exceptions import DONE, DeclinedError, NotFoundError, UsageError, XprofilerError, exit_code_of

if TYPE_CHECKING:
    from xprofiler.cloud.api import GoogleApi
    from xprofiler.console import Console
    from xprofiler.viewers.viewer import Sought, Viewer, Viewers

__all__ = ["DeleteCommand"]


class DeleteCommand:
    """Deletes viewers."""

    name = "delete"
    summary = "delete VMs that host XProf"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""
        parser.add_argument("-z", "--zone", metavar="ZONE_NAME", help="where they are (default: gcloud's zone)")
        parser.add_argument(
            "-l", "--log-directory", metavar="GS_PATH", nargs="+", default=[], help="those of these log directories"
        )
        parser.add_argument("-n", "--vm-name", metavar="VM_NAME", nargs="+", default=[], help="those of these names")
        parser.add_argument("--gke", action="store_true", help="those on the current Kubernetes cluster")
        parser.add_argument("-q", "--quiet", action="store_true", help="ask nothing")
        parser.add_argument("--dry-run", action="store_true", help="print what would do it, and delete nothing")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Delete what is found and confirmed.

        Raises:
            UsageError: Nothing is named.
            DeclinedError: Nothing was confirmed.
        """
        from xprofiler.cloud.api import GoogleApi
        from xprofiler.cloud.settings import GcloudSettings
        from xprofiler.log_directory import LogDirectory
        from xprofiler.viewers.finding import viewers_of
        from xprofiler.viewers.table import format_viewers
        from xprofiler.viewers.viewer import Sought

        if not (options.vm_name or options.log_directory):
            raise UsageError("Either --vm-name or --log-directory must be specified.")
        directories = [LogDirectory.parse(text).path for text in options.log_directory]
        api = GoogleApi(GcloudSettings.load(), console)
        zone = api.settings.zone_or_default(options.zone)
        sought = Sought([zone], directories, options.vm_name)
        viewers = viewers_of(api, sought, options.extra, is_on_gke=options.gke)
        found = _place_to_look(options, sought, api).find(sought)
        if not found:
            console.notify(f"No {viewers.noun}(s) to delete.")
            return NotFoundError.exit_code
        try:
            console.data(f"Found {len(found)} {viewers.noun}(s) to delete.\n{format_viewers(found)}")
        except BrokenPipeError as error:
            raise XprofilerError("nothing was deleted: nobody reads what that would be") from error
        if options.dry_run:
            console.data("\n".join(["", *map(shlex.join, viewers.delete_argv(found))]))
            return DONE
        failures = _delete_confirmed(console, viewers, found)
        missing = [*sorted(set(directories) - {one.log_directory for one in found})]
        missing += sorted(set(options.vm_name) - {one.name for one in found})
        if missing:
            failures.append(NotFoundError(f"no {viewers.noun} in {zone} is for or called {', '.join(missing)}"))
        return _told(failures, console)


def _place_to_look(options: argparse.Namespace, sought: Sought, api: GoogleApi) -> Viewers:
    """Where they are found: what only a deletion takes is no flag of a list."""
    from xprofiler.viewers.by_gcloud import flags_of_all_commands
    from xprofiler.viewers.finding import viewers_of

    extra = options.extra if options.gke else flags_of_all_commands(options.extra)
    return viewers_of(api, sought, extra, is_on_gke=options.gke)


def _delete_confirmed(console: Console, viewers: Viewers, found: Sequence[Viewer]) -> list[Exception]:
    """Ask for each, and then deletes those together; return what went wrong.

    Raises:
        DeclinedError: The answer was no for each.
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
        console.notify(f"\n{names} may be deleted all the same; look with: xprofiler list -n {names}")
        raise
    return [outcome for outcome in outcomes if outcome and not isinstance(outcome, NotFoundError)]


def _told(failures: Sequence[Exception], console: Console) -> int:
    """Tells what went wrong, each thing once; return the exit code, that of a plain failure where they differ."""
    for text in dict.fromkeys(map(str, failures)):
        console.notify(f"xprofiler: {text}")
    codes = {exit_code_of(failure) for failure in failures} or {DONE}
    return codes.pop() if len(codes) == 1 else XprofilerError.exit_code
