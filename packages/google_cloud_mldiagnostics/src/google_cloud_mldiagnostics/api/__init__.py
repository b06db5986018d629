"""The functions that a training script calls."""

from __future__ import annotations

from google_cloud_mldiagnostics._run.machinelearning_run import machinelearning_run
from google_cloud_mldiagnostics.api import metrics, mlrun

__all__ = ["machinelearning_run", "metrics", "mlrun"]
