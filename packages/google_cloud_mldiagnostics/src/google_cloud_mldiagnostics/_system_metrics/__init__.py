"""What the run's hosts and chips do, measured every few seconds by a thread that nobody waits for."""

from google_cloud_mldiagnostics._system_metrics.sampler import SystemMetrics

__all__ = ["SystemMetrics"]
