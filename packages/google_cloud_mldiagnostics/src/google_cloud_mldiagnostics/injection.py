"""Variables that the injection webhook gives pods, for programs that stand in for a cluster. No clock, no network."""

from __future__ import annotations

from google_cloud_mldiagnostics._kubernetes.names import LABEL
from google_cloud_mldiagnostics._kubernetes.values import variables_of
from google_cloud_mldiagnostics._kubernetes.workloads import Workload

__all__ = ["LABEL", "Workload", "variables_of"]
