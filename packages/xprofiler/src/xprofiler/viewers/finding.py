"""The choice of the interface for viewers: Compute's API, gcloud, or kubectl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import UsageError

if TYPE_CHECKING:
    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.viewers.viewer import Sought, Viewers

__all__ = ["viewers_of"]


def viewers_of(api: GoogleApi, sought: Sought, extra: Sequence[str] = (), *, is_on_gke: bool = False) -> Viewers:
    """Return the interface to use.

    Compute's API is the default, since it is fast. gcloud is used for its own flags and its filters.

    Args:
        api: Google's APIs.
        sought: The viewers to find.
        extra: Flags for gcloud.
        is_on_gke: True for viewers on the current Kubernetes cluster.

    Raises:
        UsageError: gcloud is necessary, but not installed; or filters are given for a cluster.
    """
    if is_on_gke:
        if sought.filters:
            raise UsageError("--filter is for VMs: with --gke, use zones, log directories or names")
        from xprofiler.viewers.on_gke import ViewersOnGke

        return ViewersOnGke(api.console, extra)
    if extra or sought.filters:
        from xprofiler.viewers.on_compute import ViewersByGcloud

        _require_gcloud(api.settings.environ, [*extra, *sought.filters])
        return ViewersByGcloud(api.settings.project, api.console, extra)
    from xprofiler.viewers.on_compute import ViewersOnCompute

    return ViewersOnCompute(api)


def _require_gcloud(environ: Mapping[str, str], what: Iterable[str]) -> None:
    import shutil

    if not shutil.which("gcloud", path=environ.get("PATH")):
        raise UsageError(
            f"{' '.join(what)!r} needs gcloud, which is not installed: install the Google Cloud CLI, or select VMs by "
            "zones, log directories or names"
        )
