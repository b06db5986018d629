"""Profiles of many pods: taken by the profiler servers in them, and checked in the storage that they wrote to.

The calls block, so the operator makes them in threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.storage import Parts, Storage, storage_for
from ml_diagnostics_common.xplane import summary_of

from google_cloud_mldiagnostics._kubernetes.connections.resource import Capture
from google_cloud_mldiagnostics._kubernetes.connections.status import PodResult
from google_cloud_mldiagnostics._profiling.locations import SUFFIX
from google_cloud_mldiagnostics._profiling.sessions import problem_of

__all__ = ["check_profiles", "take_profiles"]

_STORAGE_SECONDS: Final = 20.0


def take_profiles(
    capture: Capture, session: str, addresses: Mapping[str, str], service: ProfilerService
) -> dict[str, tuple[str, bool]]:
    """Profile pods at the same time.

    Args:
        capture: The capture.
        session: The name of its session.
        addresses: `host:port` of the profiler server of each pod, by its name.
        service: Makes the requests.

    Returns:
        The problem of each pod by its name, empty if it has written its profile, and True if another profile runs
        there.
    """
    pods = [*addresses]
    if not pods:
        return {}
    try:
        results = service.capture(
            [addresses[pod] for pod in pods],
            capture.folder,
            session,
            capture.duration_seconds * 1000,
            host_names=pods,
        )
    except DiagnosticsError as error:
        return {pod: (str(error), False) for pod in pods}
    return {pod: (result.problem, result.failure is Kind.CONFLICT) for pod, result in zip(pods, results, strict=True)}


def check_profiles(capture: Capture, session: str, pods: Sequence[str]) -> list[PodResult]:
    """Return which pods have a whole profile in a session.

    Args:
        capture: The capture.
        session: The name of its session.
        pods: The names of the pods.
    """
    folder = f"{capture.folder}/{session}"
    try:
        storage = storage_for(folder, deadline_seconds=_STORAGE_SECONDS)
        if not in_bucket(folder) and not storage.list_prefix(f"{folder}/"):
            return [PodResult(pod, is_verified=False) for pod in pods]  # A disk of the pods, which is not this one.
    except DiagnosticsError as error:
        return [PodResult(pod, str(error)) for pod in pods]
    return [_check(storage, f"{folder}/{pod}{SUFFIX}", pod) for pod in pods]


def _check(storage: Storage, path: str, pod: str) -> PodResult:
    try:
        problem = problem_of(summary_of(Parts(storage, path)), has_accelerator=False)
    except ObjectNotFoundError:
        problem = f"it reported success, but there is no {path}"
    except DiagnosticsError:
        return PodResult(pod, is_verified=False)
    return PodResult(pod, problem)
