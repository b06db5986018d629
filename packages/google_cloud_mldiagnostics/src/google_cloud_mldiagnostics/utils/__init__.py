"""The conversions of its arguments by `machinelearning_run`, for programs that need the results before."""

from __future__ import annotations

from ml_diagnostics_common.texts import readable_id

from google_cloud_mldiagnostics._run.arguments import checked_gcs_path as normalize_gcs_path

__all__ = ["normalize_gcs_path", "readable_id"]
