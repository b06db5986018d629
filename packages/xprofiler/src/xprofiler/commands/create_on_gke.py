"""`xprofiler create --gke`: a viewer on the current Kubernetes cluster."""

from __future__ import annotations

import argparse
import contextlib
import time
import uuid
from typing import Final

from xprofiler.console import Console
from xprofiler.exceptions import DONE, DeclinedError, TimedOutError
from xprofiler.interrupts import all_as_keyboard_interrupt
from xprofiler.log_directory import LogDirectory
from xprofiler.output import format_viewers
from xprofiler.viewers.on_gke import ViewersOnGke
from xprofiler.viewers.viewer import Sought, Viewer

__all__ = ["create_on_gke"]

_POLL_SECONDS: Final = 1.0
_QUESTION: Final = "Do you want to continue to create another instance with the same log directory? (y/n)\n"


def create_on_gke(options: argparse.Namespace, log_directory: LogDirectory, console: Console) -> int:
    """Creates the viewer, and waits until the proxy knows it.

    Args:
        options: Those of `xprofiler create`.
        log_directory: What it is to show.
        console: Where to speak and ask.

    Raises:
        TimedOutError: The proxy does not know it; it is deleted again.
        XprofilerError: kubectl could not create it.
    """
    viewers = ViewersOnGke(console, options.extra)
    name = options.vm_name or f"xprofiler-{uuid.uuid4()}"
    objects = viewers.manifest(name, options.zone, log_directory)
    if options.dry_run:
        import yaml

        console.data("# for: kubectl apply --filename=-\n" + yaml.safe_dump_all(objects, sort_keys=False).rstrip("\n"))
        return DONE
    others = viewers.find(Sought(log_directories=[log_directory.path]))
    if others:
        console.say(f"Instance for {log_directory} already exists.\n")
        console.data(format_viewers(others))
        console.say("\n")
        if options.skip_creation_if_exists or not console.confirms(_QUESTION):
            console.say("Exiting...")
            return DONE if options.skip_creation_if_exists else DeclinedError.exit_code
    console.say("Waiting for instance to be created. It can take a few minutes.\n")
    with all_as_keyboard_interrupt():
        try:
            viewers.apply(objects)
            url = _wait(viewers, name, options.timeout)
        except BaseException:
            _undo(viewers, Viewer(name, options.zone, log_directory.path, None, ""), options, console)
            raise
    console.data(f"\nStarted on URL {url}")
    return DONE


def _wait(viewers: ViewersOnGke, name: str, timeout_seconds: float) -> str:
    deadline = time.monotonic() + timeout_seconds
    while True:
        url = viewers.url(name)
        if url:
            return url
        if time.monotonic() >= deadline:
            raise TimedOutError(
                f"Timed out to wait XProfiler start after {timeout_seconds:g} seconds. Look at the pods with the label "
                f"instance={name}, with --auto-delete-on-failure-off"
            )
        time.sleep(_POLL_SECONDS)


def _undo(viewers: ViewersOnGke, viewer: Viewer, options: argparse.Namespace, console: Console) -> None:
    """Deletes what was made, and tells what remains; also where nobody can read that any more."""

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            console.say(text)

    how = f"Delete it: xprofiler delete --gke -z {viewer.zone} -n {viewer.name}"
    if options.auto_delete_on_failure_off:
        say(f"Failure in setting up {viewer.name}. Note that it was NOT deleted. {how}")
        return
    say("Unable to set up instance. Initiating cleanup.\n")
    why: object = "its deletion was interrupted"
    try:
        (why,) = viewers.delete([viewer])
    finally:
        say(f"{viewer.name} MAY REMAIN: {why}. {how}" if why else f"{viewer.name} is deleted. Nothing remains.")
