"""The ledger: from events to an exact partition of the wall time."""

from __future__ import annotations

from ml_goodput_measurement.ledger.ledger import Ledger, Summary, Window

__all__ = ["Ledger", "Summary", "Window"]
