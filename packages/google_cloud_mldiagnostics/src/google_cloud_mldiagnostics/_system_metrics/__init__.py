"""Metrics of the run's hosts and chips, measured every few seconds by a thread that is never waited for."""

from google_cloud_mldiagnostics._system_metrics.sampler import SystemMetrics

__all__ = ["SystemMetrics"]
