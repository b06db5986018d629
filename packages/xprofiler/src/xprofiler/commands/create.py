"""`xprofiler create`: a VM, or a deployment on GKE, that hosts XProf for a log directory."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xprofiler.arguments import seconds
from xprofiler.exceptions import DONE, DeclinedError, UsageError, XprofilerError

if TYPE_CHECKING:
    from xprofiler.cloud.api import GoogleApi
    from xprofiler.console import Console
    from xprofiler.log_directory import LogDirectory
    from xprofiler.viewers.instances import Instances
    from xprofiler.viewers.plan import ViewerPlan
    from xprofiler.viewers.setup import ViewerSetup
    from xprofiler.viewers.startup.status import StartupStatus

__all__ = ["CreateCommand"]

_DEFAULT_MACHINE_TYPE = "c4-highmem-8"
_QUESTION = "Do you want to continue to create another instance with the same log directory? (y/n)\n"


class CreateCommand:
    """Creates a viewer."""

    name = "create"
    summary = "create a VM that hosts XProf for a log directory"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
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
        """Creates it, and says how to reach it."""
        from xprofiler.log_directory import LogDirectory

        log_directory = LogDirectory.parse(options.log_directory)
        if log_directory.note:
            console.say(log_directory.note)
        if options.gke:
            if options.ttl is not None:
                raise UsageError(
                    "--ttl is kept by Compute, for VMs; on GKE, delete the viewer with 'xprofiler delete --gke'"
                )
            from xprofiler.commands.create_on_gke import create_on_gke

            return create_on_gke(options, log_directory, console)
        plan = _plan(options, log_directory)
        return _create(plan, options, console)


def _plan(options: argparse.Namespace, log_directory: LogDirectory) -> ViewerPlan:
    import uuid

    from xprofiler.viewers.plan import ViewerPlan, seconds_of

    return ViewerPlan(
        name=options.vm_name or f"xprof-{uuid.uuid4()}",
        zone=options.zone,
        machine_type=options.machine_type,
        log_directory=log_directory,
        ttl_seconds=None if options.ttl is None else seconds_of(options.ttl),
    )


def _create(plan: ViewerPlan, options: argparse.Namespace, console: Console) -> int:
    from xprofiler.cloud.api import GoogleApi
    from xprofiler.cloud.settings import GcloudSettings
    from xprofiler.interrupts import all_as_keyboard_interrupt
    from xprofiler.viewers.instances import Instances
    from xprofiler.viewers.setup import Patience, ViewerSetup

    settings = GcloudSettings.load()
    api = GoogleApi(settings, console)
    argv = plan.gcloud_argv(settings.project or api.project, options.extra)
    if options.dry_run:
        console.data(shlex.join(argv))
        return DONE
    instances = Instances(api)
    setup = ViewerSetup(plan, instances, api.storage, console, Patience(startup=options.timeout))
    setup.check()
    end = _end_for_others(plan, options, api, console)
    if end is not None:
        return end
    console.say("Waiting for instance to be created. It can take a few minutes.\n")
    with all_as_keyboard_interrupt():
        try:
            status = setup.make(lambda: _ask_for_vm(plan, argv if options.extra else None, instances, console))
            _say_where_it_is(plan, status, console)
        except BrokenPipeError:  # It is there; nobody wants to read where.
            raise
        except BaseException:
            _undo(setup, plan, options, console)
            raise
    return DONE


def _end_for_others(plan: ViewerPlan, options: argparse.Namespace, api: GoogleApi, console: Console) -> int | None:
    """Tells of viewers that there are for the log directory; returns the exit code if there shall be no other."""
    from xprofiler.output import format_viewers
    from xprofiler.viewers.on_compute import ViewersOnCompute
    from xprofiler.viewers.viewer import Sought

    others = ViewersOnCompute(api).find(Sought(zones=[plan.zone], log_directories=[plan.log_directory.path]))
    if not others:
        return None
    console.say(f"Instance for {plan.log_directory} already exists.\n")
    console.data(format_viewers(others))
    console.say("\n")
    if not options.skip_creation_if_exists and console.confirms(_QUESTION):
        return None
    console.say("Exiting...")
    return DONE if options.skip_creation_if_exists else DeclinedError.exit_code


def _ask_for_vm(plan: ViewerPlan, argv: Sequence[str] | None, instances: Instances, console: Console) -> None:
    """By Compute's API; by gcloud, where the user has flags for it."""
    from xprofiler.programs.processes import Programs

    if argv is None:
        instances.insert(plan.zone, plan.body())
        return
    with Programs(console) as programs:
        ended = programs.run([*argv, "--quiet"])
    if ended.exit_code:
        raise XprofilerError(f"gcloud could not create the VM {plan.name}: {ended.complaint}")


def _say_where_it_is(plan: ViewerPlan, status: StartupStatus, console: Console) -> None:
    from xprofiler.viewers.labels import BACKEND_LABEL, viewer_url

    url = viewer_url(status.labels.get(BACKEND_LABEL), plan.zone)
    where = plan.log_directory
    lines = [
        f"Instance for {where} has been created.",
        "You can access it via following,",
        f"1. xprofiler connect -z {plan.zone} -l {shlex.quote(where.path)} -m ssh",
        *([f"2. [Experimental (supports smaller files, < 200mb)] {url}."] if url else []),
        f"Instance is hosted at {plan.name} VM.",
    ]
    console.say()
    console.data("\n".join(lines))
    if not url:
        console.say(f"note: it has no link ({status.error or 'the proxy does not know it'}); the tunnel needs none")


def _undo(setup: ViewerSetup, plan: ViewerPlan, options: argparse.Namespace, console: Console) -> None:
    """Deletes what was made, and tells what remains; also where nobody can read that any more."""
    import contextlib

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            console.say(text)

    if not setup.may_exist:
        return
    if options.auto_delete_on_failure_off:
        say("Failure in setting up VM.")
        say("Note that the VM was NOT deleted and may be in a bad state and/or unstable.\n")
        say(f"Instance is hosted at {plan.name} VM. {_how_to_delete(plan)}")
        return
    say("Unable to set up instance. Initiating cleanup.\n")
    why: object = "its deletion was interrupted"
    try:
        why = setup.remove()
    finally:
        if why is None:
            say(f"The VM {plan.name} is deleted. Nothing remains.")
        else:
            say(f"The VM {plan.name} in zone {plan.zone} MAY REMAIN, and cost money: {why}. {_how_to_delete(plan)}")


def _how_to_delete(plan: ViewerPlan) -> str:
    return f"Delete it: xprofiler delete -z {plan.zone} -n {plan.name}"
