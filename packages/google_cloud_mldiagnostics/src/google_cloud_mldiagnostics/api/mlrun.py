"""`machinelearning_run`, by the name of the public package's module."""

from __future__ import annotations

from google_cloud_mldiagnostics.run import machinelearning_run
from google_cloud_mldiagnostics.run_arguments import checked_gcs_path as normalize_gcs_path

__all__ = ["machinelearning_run", "normalize_gcs_path"]
