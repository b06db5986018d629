"""Cloud Monitoring on loopback, over gRPC and REST."""

from ml_diagnostics_testing.cloud_monitoring._server import CloudMonitoringServer

__all__ = ["CloudMonitoringServer"]
