"""`machinelearning_run`, by the name of the public package's module."""

from __future__ import annotations

from google_cloud_mldiagnostics._run.arguments import checked_gcs_path as normalize_gcs_path
from google_cloud_mldiagnostics._run.machinelearning_run import machinelearning_run

__all__ = ["machinelearning_run", "normalize_gcs_path"]
