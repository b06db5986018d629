"""Connections to control planes, made in the registration's thread, in which the clients are imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ml_diagnostics_common.process_hooks import import_clients
from ml_diagnostics_common.texts import readable_id

from google_cloud_mldiagnostics.control_plane import Connection

if TYPE_CHECKING:
    from google_cloud_mldiagnostics._identity import Workload
    from google_cloud_mldiagnostics.mlrun_types import MLRun

__all__ = ["find_google", "find_self_hosted"]


def find_google(project: str | None, location: str, environment: str) -> Callable[[], Connection]:
    """Return a function that connects to Google's control plane; it raises CredentialsError without a cloud.

    Args:
        project: The project's id; None for the one that is found.
        location: The region.
        environment: prod, staging or autopush.
    """

    def connect() -> Connection:
        import_clients("google_cloud_mldiagnostics.control_plane.google")
        from ml_diagnostics_common.credentials import find_cloud

        from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane

        cloud = find_cloud(project)
        plane = GoogleControlPlane(
            cloud.project, location, cloud.credentials, environment=environment, principal=cloud.principal
        )
        return Connection(plane, cloud.project, plane.address)

    return connect


def find_self_hosted(
    base_url: str, run: MLRun, workload: Workload, *, is_owner: bool, environ: Mapping[str, str] = os.environ
) -> Callable[[], Connection]:
    """Return a function that connects to a control plane on the user's own cluster.

    Args:
        base_url: Where it is.
        run: The run.
        workload: The workload of this process.
        is_owner: Whether this process registers the run.
        environ: The environment variables.
    """
    workload_id = environ.get("DIAGON_WORKLOAD_ID") or environ.get("WORKLOAD_ID") or "-".join(workload.id_parts)

    def connect() -> Connection:
        import_clients("google_cloud_mldiagnostics.control_plane.self_hosted")
        from google_cloud_mldiagnostics.control_plane.self_hosted import SelfHostedControlPlane

        plane = SelfHostedControlPlane(
            base_url,
            workload_id=workload_id or readable_id(run.display_name),  # The run's own id is another at each start.
            namespace=environ.get("POD_NAMESPACE") or "default",
            cluster_id=run.cluster_id or "",
            agent_url=environ.get("DIAGON_AGENT_URL", ""),
        )
        if not is_owner:
            plane.join_run(run.name)
        return Connection(plane, "")

    return connect
