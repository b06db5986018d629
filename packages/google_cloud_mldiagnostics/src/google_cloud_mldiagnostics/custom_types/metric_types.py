"""The predefined metrics, by the name of the public package."""

from __future__ import annotations

from google_cloud_mldiagnostics.metric_types import METRIC_UNITS, AcceleratorType, MetricType

__all__ = ["METRIC_UNITS", "AcceleratorType", "MetricType"]
