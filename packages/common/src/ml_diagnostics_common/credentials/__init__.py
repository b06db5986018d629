"""Which cloud this is: project and credentials, found in bounded time."""

from __future__ import annotations

from ml_diagnostics_common.credentials.credentials import (
    CloudEnvironment,
    active_configuration,
    find_cloud,
    gcloud_directory,
    known_project,
    universe_domain,
)

__all__ = [
    "CloudEnvironment",
    "active_configuration",
    "find_cloud",
    "gcloud_directory",
    "known_project",
    "universe_domain",
]
