"""`xprofiler register`: create a completed run of ML Diagnostics for existing profiles."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, UsageError

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["RegisterCommand"]

_REGION: Final = re.compile(r"[a-z]+(-[a-z]+)*-[a-z]+[0-9]+")
_PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,61}[a-z0-9]")


class RegisterCommand:
    """Registers profiles with Google's control plane."""

    name = "register"
    summary = "create a completed run of ML Diagnostics for profiles that were captured before"
    passes_on = False

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""
        add = parser.add_argument
        add(
            "-l",
            "--log-directory",
            metavar="GS_PATH",
            required=True,
            help="the folder of the profiles: gs://bucket/path",
        )
        add("-r", "--region", metavar="REGION", required=True, help="the region of the run, such as us-central1")
        add("-m", "--ml-run-name", metavar="ML_RUN_NAME", required=True, help="the name of the run")
        add("-s", "--run-set", metavar="RUN_SET", required=True, help="the run set that it belongs to")
        add("-p", "--project-id", metavar="PROJECT_ID", required=True, help="the project of the run")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Create the run, and print its page in the console.

        Raises:
            UsageError: An argument is not valid.
            NotFoundError: There is no profile below the log directory.
            NotPermittedError: The credentials may not read the bucket, or not create runs.
            CommandError: The run could not be created.
        """
        import time
        from dataclasses import replace

        from ml_diagnostics_common.texts import readable_id

        from xprofiler.gcloud.api import GoogleApi
        from xprofiler.gcloud.ml_runs import MlRuns, console_link
        from xprofiler.gcloud.settings import GcloudSettings
        from xprofiler.log_directory import LogDirectory
        from xprofiler.summary.profiles import find_profile
        from xprofiler.waiting import notify_if_slow

        log_directory = LogDirectory.parse(options.log_directory)
        _check(options)
        with notify_if_slow(console, f"Waiting for an answer about {log_directory} ..."):
            newest = find_profile(log_directory.path)
        settings = GcloudSettings.load()
        environ = {**settings.environ, "GOOGLE_CLOUD_PROJECT": options.project_id}
        api = GoogleApi(replace(settings, environ=environ), console)
        run_id = readable_id(options.ml_run_name, time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
        console.detail(f"Registering {newest.folder}")
        MlRuns(api, options.region).create(run_id, _run(options, log_directory.path))
        link = console_link(options.project_id, options.region, run_id)
        console.data(f"view the ML run at {link}")
        return DONE


def _check(options: argparse.Namespace) -> None:
    for pattern, flag, value in (
        (_REGION, "--region", options.region),
        (_PROJECT, "--project-id", options.project_id),
        (re.compile(r".*\S.*"), "--ml-run-name", options.ml_run_name),
        (re.compile(r".*\S.*"), "--run-set", options.run_set),
    ):
        if not pattern.fullmatch(value):
            raise UsageError(f"{flag} {value!r} is not valid")


def _run(options: argparse.Namespace, path: str) -> dict[str, object]:
    """Return the fields of a completed run."""
    from xprofiler._version import __version__

    return {
        "displayName": options.ml_run_name,
        "runSet": options.run_set,
        "runPhase": "COMPLETED",
        "state": "STATE_COMPLETED",  # As the public command; the service may derive it from the phase.
        "artifacts": {"gcsPath": path},
        "tools": [{"xprof": {}}],
        "labels": {"created_by": "xprofiler", "xprofiler_version": __version__.replace(".", "-")},
    }
