"""The ledger: from events to an exact partition of the wall time."""

from __future__ import annotations

from ml_goodput_measurement._ledger.ledger import PROCESS_GONE, RULES, Ledger, Summary, Window

__all__ = ["PROCESS_GONE", "RULES", "Ledger", "Summary", "Window"]
