"""From the journal to Cloud Logging."""

from __future__ import annotations

from ml_diagnostics_common.shipper.shipper import Shipper, ShipperStatistics

__all__ = ["Shipper", "ShipperStatistics"]
