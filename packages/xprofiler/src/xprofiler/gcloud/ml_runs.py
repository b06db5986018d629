"""Machine learning runs in Google's control plane, ML Diagnostics. Completed runs are created.

API: https://github.com/googleapis/googleapis/blob/master/google/cloud/hypercomputecluster/v1alpha/machine_learning_runs.proto
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.command.errors import CommandError, TimedOutError, UsageError
from ml_diagnostics_common.failures import Kind, classify

from xprofiler.gcloud.api import GoogleApi

__all__ = ["MlRuns", "console_link"]

_CREATION_SECONDS: Final = 120.0


class MlRuns:
    """The runs of a project in one region.

    Args:
        api: Google's APIs, with a project.
        region: Such as "us-central1".
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.
    """

    def __init__(
        self,
        api: GoogleApi,
        region: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._api = api
        self._parent = f"projects/{api.project}/locations/{region}"
        self._clock = clock
        self._sleep = sleep

    def create(self, run_id: str, run: Mapping[str, Any]) -> None:
        """Create a run, and wait until it exists.

        If the first answer did not arrive and the retry finds that the run exists, it is ours if its fields are equal.

        Raises:
            NotPermittedError: The credentials lack a permission.
            TimedOutError: The run does not exist yet; it may still be created.
            UsageError: Another run has this id.
            CommandError: The run could not be created.
        """
        doing = f"create the run {run_id}"
        runs = self._api.hypercomputecluster.projects().locations().machineLearningRuns()
        request = runs.create(parent=self._parent, body={**run, "name": run_id}, machine_learning_run_id=run_id)
        try:
            operation = self._api.execute(request, doing, is_repeatable=True)
        except CommandError as error:
            if classify(error).kind is not Kind.CONFLICT:
                raise
            self._require_same(run_id, run, error)
        else:
            self._finish(operation, doing)

    def _require_same(self, run_id: str, run: Mapping[str, Any], conflict: CommandError) -> None:
        runs = self._api.hypercomputecluster.projects().locations().machineLearningRuns()
        kept = self._api.execute(
            runs.get(name=f"{self._parent}/machineLearningRuns/{run_id}"), f"read the run {run_id}"
        )
        if any(kept.get(field) != run[field] for field in ("displayName", "runSet", "artifacts")):
            raise UsageError(f"{conflict}; choose another name") from conflict

    def _finish(self, operation: Mapping[str, Any], doing: str) -> None:
        if "/operations/" not in str(operation.get("name", "")):
            return  # The run itself.
        operations = self._api.hypercomputecluster.projects().locations().operations()
        deadline, backoff = self._clock() + _CREATION_SECONDS, Backoff(0.1, 5.0)
        while not operation.get("done"):
            if self._clock() >= deadline:
                raise TimedOutError(f"could not {doing} within {_CREATION_SECONDS:g} s; it may still be created")
            self._sleep(backoff.failed())
            operation = self._api.execute(operations.get(name=operation["name"]), doing)
        if operation.get("error"):
            raise CommandError(f"could not {doing}: {operation['error'].get('message', operation['error'])}")


def console_link(project: str, region: str, run_id: str) -> str:
    """Return the run's page in Google Cloud's console."""
    return f"https://console.cloud.google.com/cluster-director/diagnostics/details/{region}/{run_id}?project={project}"
