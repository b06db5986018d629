"""The creation of a viewer: check for existing ones, create it, and clean up after a failure."""

from __future__ import annotations

import argparse
import io
import uuid
from typing import Final

from ml_diagnostics_common.command.console import Console, ReaderGoneError
from ml_diagnostics_common.command.errors import DONE, DeclinedError, UsageError

from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.settings import GcloudSettings
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.on_compute import ViewersOnCompute
from xprofiler.viewers.on_gke import ViewerSetupOnGke, ViewersOnGke
from xprofiler.viewers.plan import ViewerPlan, seconds_of
from xprofiler.viewers.setup import SetupTimes, ViewerSetup
from xprofiler.viewers.viewer import NewViewer, Viewers, format_viewers

__all__ = ["create"]

_QUESTION: Final = "Do you want to continue to create another instance with the same log directory? (y/n)\n"


def create(options: argparse.Namespace, console: Console) -> int:
    """Create a viewer, print how to connect, and return the exit code.

    Args:
        options: The options of `xprofiler create`.
        console: For output and prompts.

    Raises:
        UsageError: The options conflict, or the name is in use.
        DiagnosticsError: The creation failed, and was undone.
    """
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


def _on_compute(
    options: argparse.Namespace, log_directory: LogDirectory, console: Console
) -> tuple[NewViewer, Viewers]:
    plan = ViewerPlan(
        name=options.vm_name or f"xprof-{uuid.uuid4()}",
        zone=options.zone,
        machine_type=options.machine_type,
        log_directory=log_directory,
        ttl_seconds=None if options.ttl is None else seconds_of(options.ttl),
    )
    settings = GcloudSettings.load()
    api = GoogleApi(settings, console)
    argv = plan.gcloud_argv(settings.project or api.project, options.extra)
    times = SetupTimes(startup=options.timeout)
    setup = ViewerSetup(plan, Instances(api), lambda: api.storage, console, times, argv, by_gcloud=bool(options.extra))
    return setup, ViewersOnCompute(api)


def _on_gke(options: argparse.Namespace, log_directory: LogDirectory, console: Console) -> tuple[NewViewer, Viewers]:
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
