"""The run of this process. By this module's name the run's details are logged, at DEBUG, when it begins."""

from __future__ import annotations

from google_cloud_mldiagnostics.active_run import ActiveRun, active_run
from google_cloud_mldiagnostics.beginning import details_logger

__all__ = ["ActiveRun", "active_run", "details_logger"]
