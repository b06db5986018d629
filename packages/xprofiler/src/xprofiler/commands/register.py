"""`xprofiler register`: create a completed run of ML Diagnostics for existing profiles.

API: https://github.com/googleapis/googleapis/blob/master/google/cloud/hypercomputecluster/v1alpha/machine_learning_runs.proto
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.command.errors import DONE, CommandError, TimedOutError, UsageError

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from xprofiler.gcloud.api import GoogleApi

__all__ = ["RegisterCommand"]

_CREATION_SECONDS: Final = 120.0

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

        from xprofiler.cli import notify_if_slow
        from xprofiler.gcloud.api import GoogleApi
        from xprofiler.gcloud.settings import GcloudSettings
        from xprofiler.log_directory import LogDirectory
        from xprofiler.summary.profiles import find_profile

        log_directory = LogDirectory.parse(options.log_directory)
        _check(options)
        with notify_if_slow(console, f"Waiting for an answer about {log_directory} ..."):
            newest = find_profile(log_directory.path)
        settings = GcloudSettings.load()
        environ = {**settings.environ, "GOOGLE_CLOUD_PROJECT": options.project_id}
        api = GoogleApi(replace(settings, environ=environ), console)
        run_id = readable_id(options.ml_run_name, time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
        console.detail(f"Registering {newest.folder}")
        parent = f"projects/{api.project}/locations/{options.region}"
        _create(api, parent, run_id, _run(options, log_directory.path))
        page = "https://console.cloud.google.com/cluster-director/diagnostics/details"
        console.data(f"view the ML run at {page}/{options.region}/{run_id}?project={options.project_id}")
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
    from xprofiler.viewers.viewer import label_value

    return {
        "displayName": options.ml_run_name,
        "runSet": options.run_set,
        "runPhase": "COMPLETED",
        "state": "STATE_COMPLETED",  # As the public command; the service may derive it from the phase.
        "artifacts": {"gcsPath": path},
        "tools": [{"xprof": {}}],
        "labels": {"created_by": "xprofiler", "xprofiler_version": label_value(__version__)},
    }


def _create(api: GoogleApi, parent: str, run_id: str, run: Mapping[str, Any]) -> None:
    """Create a run, and wait until it exists.

    If the first answer did not arrive and the retry finds that the run exists, it is ours if its fields are equal.

    Raises:
        NotPermittedError: The credentials lack a permission.
        TimedOutError: The run does not exist yet; it may still be created.
        UsageError: Another run has this id.
        CommandError: The run could not be created.
    """
    from ml_diagnostics_common.failures import Kind, classify

    doing = f"create the run {run_id}"
    runs = api.hypercomputecluster.projects().locations().machineLearningRuns()
    request = runs.create(parent=parent, body={**run, "name": run_id}, machine_learning_run_id=run_id)
    try:
        operation = api.execute(request, doing, is_repeatable=True)
    except CommandError as error:
        if classify(error).kind is not Kind.CONFLICT:
            raise
        existing = api.execute(runs.get(name=f"{parent}/machineLearningRuns/{run_id}"), f"read the run {run_id}")
        if any(existing.get(field) != run[field] for field in ("displayName", "runSet", "artifacts")):
            raise UsageError(f"{error}; choose another name") from error
    else:
        _wait(api, operation, doing)


def _wait(api: GoogleApi, operation: Mapping[str, Any], doing: str) -> None:
    """Wait until an operation is done."""
    import time

    from ml_diagnostics_common.backoff import Backoff

    if "/operations/" not in str(operation.get("name", "")):
        return  # The run itself.
    operations = api.hypercomputecluster.projects().locations().operations()
    deadline, backoff = time.monotonic() + _CREATION_SECONDS, Backoff(0.1, 5.0)
    while not operation.get("done"):
        if time.monotonic() >= deadline:
            raise TimedOutError(f"could not {doing} within {_CREATION_SECONDS:g} s; it may still be created")
        time.sleep(backoff.failed())
        operation = api.execute(operations.get(name=operation["name"]), doing)
    if operation.get("error"):
        raise CommandError(f"could not {doing}: {operation['error'].get('message', operation['error'])}")
