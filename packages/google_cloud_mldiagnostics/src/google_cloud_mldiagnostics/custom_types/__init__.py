"""Types and errors, by the names of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics.custom_types import exceptions, metric_types, mlrun_types

__all__ = ["exceptions", "metric_types", "mlrun_types"]
