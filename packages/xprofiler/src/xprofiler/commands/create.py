"""`xprofiler create`: create a VM, or a deployment on GKE, that hosts XProf for a log directory."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.console import ReaderGoneError
from ml_diagnostics_common.command.errors import DONE, DeclinedError, UsageError
from ml_diagnostics_common.command.options import seconds

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from xprofiler.log_directory import LogDirectory
    from xprofiler.viewers.viewer import NewViewer, Viewers

__all__ = ["CreateCommand"]

_DEFAULT_MACHINE_TYPE: Final = "c4-highmem-8"
_QUESTION: Final = "Do you want to continue to create another instance with the same log directory? (y/n)\n"


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
        add("--ttl", metavar="DURATION", type=_ttl_seconds, help="delete the VM after this time: 90m, 8h, 2d")
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
        """Create the viewer, and print how to connect.

        Raises:
            UsageError: The options conflict, or the name is in use.
            DiagnosticsError: The creation failed, and was undone.
        """
        from xprofiler.log_directory import LogDirectory

        log_directory = LogDirectory.parse(options.log_directory)
        if log_directory.note:
            console.notify(log_directory.note)
        new, viewers = (_on_gke if options.gke else _on_compute)(options, log_directory, console)
        if options.dry_run:
            console.data(new.recipe())
            return DONE
        new.check()
        if not _is_wanted(new, viewers, log_directory, console, never_another=options.skip_creation_if_exists):
            console.notify("Exiting...")
            return DONE if options.skip_creation_if_exists else DeclinedError.exit_code
        console.notify("Waiting for instance to be created. It can take a few minutes.\n")
        _make(new, console, is_kept=options.auto_delete_on_failure_off)
        return DONE


def _ttl_seconds(text: str) -> int:
    """Parse the lifetime of a VM; https://cloud.google.com/compute/docs/instances/limit-vm-runtime has the limits."""
    ttl = seconds(text)
    if not 30 <= ttl <= 120 * 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: give a duration between 30s and 120d, such as 90m, 8h or 2d")
    return int(ttl)


def _on_compute(
    options: argparse.Namespace, log_directory: LogDirectory, console: Console
) -> tuple[NewViewer, Viewers]:
    import uuid

    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.gcloud.settings import GcloudSettings
    from xprofiler.viewers.instances import Instances
    from xprofiler.viewers.on_compute import ViewersOnCompute
    from xprofiler.viewers.plan import ViewerPlan
    from xprofiler.viewers.setup import SetupTimes, ViewerSetup

    plan = ViewerPlan(
        name=options.vm_name or f"xprof-{uuid.uuid4()}",
        zone=options.zone,
        machine_type=options.machine_type,
        log_directory=log_directory,
        ttl_seconds=options.ttl,
    )
    settings = GcloudSettings.load()
    api = GoogleApi(settings, console)
    argv = plan.gcloud_argv(settings.project or api.project, options.extra)
    times = SetupTimes(startup=options.timeout)
    setup = ViewerSetup(plan, Instances(api), lambda: api.storage, console, times, argv, by_gcloud=bool(options.extra))
    return setup, ViewersOnCompute(api)


def _on_gke(options: argparse.Namespace, log_directory: LogDirectory, console: Console) -> tuple[NewViewer, Viewers]:
    import uuid

    from xprofiler.viewers.on_gke import ViewerSetupOnGke, ViewersOnGke

    if options.ttl is not None:
        raise UsageError(
            "--ttl is for VMs, which Compute deletes; on GKE, delete the viewer with 'xprofiler delete --gke'"
        )
    viewers = ViewersOnGke(console, options.extra)
    name = options.vm_name or f"xprofiler-{uuid.uuid4()}"
    return ViewerSetupOnGke(viewers, name, options.zone, log_directory, console, options.timeout), viewers


def _is_wanted(
    new: NewViewer, viewers: Viewers, log_directory: LogDirectory, console: Console, *, never_another: bool
) -> bool:
    """Print existing viewers for the log directory, and ask whether to create another one."""
    from xprofiler.viewers.viewer import format_viewers

    others = viewers.find(new.others)
    if not others:
        return True
    console.notify(f"Instance for {log_directory} already exists.\n")
    console.data(format_viewers(others))
    console.notify("\n")
    return not never_another and console.confirms(_QUESTION)


def _make(new: NewViewer, console: Console, *, is_kept: bool) -> None:
    try:
        console.data(new.make())
    except ReaderGoneError:  # The viewer exists; only its description could not be printed.
        raise
    except BaseException:
        if new.may_exist:
            _undo(new, console, is_kept=is_kept)
        raise


def _undo(new: NewViewer, console: Console, *, is_kept: bool) -> None:
    """Delete what was created, and print what remains. Continue if the terminal is closed."""

    def notify(text: str) -> None:
        try:
            console.notify(text)
        except OSError:
            console.err = io.StringIO()  # The terminal is closed: messages must not stop the cleanup.

    how = f"Delete it: {new.delete_command}"
    if is_kept:
        notify(f"Failure in setting up {new.noun}.")
        notify(f"Note that the {new.noun} was NOT deleted and may be in a bad state and/or unstable.\n")
        notify(f"Instance is hosted at {new.name} {new.noun}. {how}")
        return
    notify("Unable to set up instance. Initiating cleanup.\n")
    why: object = "its deletion was interrupted"
    try:
        why = new.remove()
    finally:
        if why is None:
            notify(f"The {new.noun} {new.name} was deleted. Nothing remains.")
        else:
            notify(f"The {new.noun} {new.name} in zone {new.zone} MAY REMAIN, and cost money: {why}. {how}")
