"""`record` and `record_metrics`, by the name of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics.metrics import Moment, record, record_metrics

__all__ = ["Moment", "record", "record_metrics"]
