"""What a training script calls."""

from __future__ import annotations

from google_cloud_mldiagnostics.api import metrics, mlrun
from google_cloud_mldiagnostics.run import machinelearning_run

__all__ = ["machinelearning_run", "metrics", "mlrun"]
