"""Cloud Logging on loopback, over gRPC and REST."""

from ml_diagnostics_testing.cloud_logging._server import CloudLoggingServer

__all__ = ["CloudLoggingServer"]
