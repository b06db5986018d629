"""Ours and other trackers of training runs, each started as its users start it, in its own environment."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import process
from benchmarks.run_cloud import NOWHERE, PROJECT, REGION, Addresses

Record = Callable[[str, float, int], None]
"""Records a value of a metric at a step."""


@dataclass(frozen=True)
class Tracker:
    """One of them.

    Attributes:
        name: Its name in the results.
        kind: "ours", "reference", "wandb" or "mlflow".
        pins: The pins of its environment; empty for ours.
    """

    name: str
    kind: str
    pins: str = ""

    def run(
        self,
        function: Callable[..., Any],
        cloud: Addresses | None = None,
        environment: dict[str, str] | None = None,
        **parameters: Any,
    ) -> Any:
        """Return the result of a function in a new process of this tracker's environment.

        Args:
            function: Takes `kind` and `urls`, arguments of `start`, beside its own parameters.
            cloud: The addresses of the cloud; None disables cloud detection.
            environment: More variables.
            parameters: The function's own.
        """
        settings = self.settings(cloud) | (environment or {})
        parameters |= {"kind": self.kind, "urls": self.urls(cloud)}
        if not self.pins:
            return process.ours(function, environment=settings, **parameters)
        return process.reference(function, pins=self.pins, environment=settings, **parameters)

    def settings(self, cloud: Addresses | None) -> dict[str, str]:
        """Return the environment variables of a process that uses it."""
        if self.kind == "ours":
            return {"ML_DIAGNOSTICS_BACKEND": "auto", **cloud.environment} if cloud else {}
        return {"GOOGLE_CLOUD_DISABLE_GRPC": "true", "GCE_METADATA_HOST": NOWHERE, **_NO_TELEMETRY}

    def urls(self, cloud: Addresses | None) -> dict[str, str]:
        """Return the URLs of Google's services by their hosts."""
        if cloud is None:
            return {}
        return {
            "hypercomputecluster.googleapis.com": cloud.control_plane,
            "logging.googleapis.com": cloud.logging,
        }


_NO_TELEMETRY = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}

OURS = Tracker("ours", "ours")
REFERENCES = [
    Tracker("1.0.0", "reference", "reference-mldiagnostics-1.0.0"),
    Tracker("1.0.10", "reference", "reference-mldiagnostics-1.0.10"),
]
OTHERS = [Tracker("W&B offline", "wandb", "bench-trackers"), Tracker("MLflow files", "mlflow", "bench-trackers")]
ALL = [OURS, *REFERENCES, *OTHERS]


# --- In the process that is measured ----------------------------------------------------------------------


def prepare(kind: str, urls: dict[str, str]) -> None:
    """Prepare a tracker for a machine without Google Cloud. Not measured."""
    if kind == "reference":
        _redirect(urls)


def load(kind: str) -> None:
    """Import what its users import."""
    if kind in ("ours", "reference"):
        from google_cloud_mldiagnostics import machinelearning_run, metric_types, metrics, xprof  # noqa: F401
    elif kind == "wandb":
        import wandb  # type: ignore[import-not-found]  # noqa: F401
    else:
        import mlflow  # type: ignore[import-not-found]  # noqa: F401


def start(kind: str, **options: Any) -> Record:
    """Start a run.

    Args:
        kind: The kind of the tracker.
        options: More for `machinelearning_run`.

    Returns:
        The function that records.
    """
    if kind == "wandb":
        return _start_wandb()
    if kind == "mlflow":
        return _start_mlflow()
    from google_cloud_mldiagnostics import machinelearning_run, metrics

    machinelearning_run(name="benchmark", project=PROJECT, region=REGION, **options)
    return metrics.record


def _start_wandb() -> Record:
    import wandb

    run = wandb.init(project="benchmark", dir=os.environ["TMPDIR"])

    def record(name: str, value: float, step: int) -> None:
        run.log({name: value}, step=step)

    return record


def _start_mlflow() -> Record:
    import mlflow

    mlflow.set_tracking_uri(f"file:{os.environ['TMPDIR']}/mlruns")
    mlflow.start_run()
    record: Record = mlflow.log_metric
    return record


def _redirect(urls: dict[str, str]) -> None:
    """Redirect all requests to Google to loopback, and refuse those without a server there.

    The reference has no setting for this: its addresses are fixed.
    """
    import google.auth
    from google.auth.credentials import Credentials
    from requests import adapters

    class Token(Credentials):
        def refresh(self, request: Any) -> None:
            self.token = "token"

    credentials = Token()  # type: ignore[no-untyped-call]
    credentials.refresh(None)
    google.auth.default = lambda *_, **__: (credentials, PROJECT)
    adapter_class: Any = adapters.HTTPAdapter
    send = adapter_class.send

    def redirected(adapter: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        parts = urllib.parse.urlsplit(request.url)
        server = urllib.parse.urlsplit(urls.get(parts.hostname or "", f"http://{NOWHERE}"))
        request.url = parts._replace(scheme=server.scheme, netloc=server.netloc).geturl()
        return send(adapter, request, *arguments, **options)

    adapter_class.send = redirected
