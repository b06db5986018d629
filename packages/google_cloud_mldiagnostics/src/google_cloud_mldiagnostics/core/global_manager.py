"""The run of this process. By this module's name the run's details are logged, at DEBUG, when it starts."""

from __future__ import annotations

from google_cloud_mldiagnostics._run.start import details_logger
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, active_run

__all__ = ["ActiveRun", "active_run", "details_logger"]
