"""Goodput of thousands of jobs: their events in Parquet, one ledger for each, and rows that sum exactly.

    mirror (gzip JSON lines) -> compact -> events (Parquet) -> job_rows, the map -> rows -> sums by any engine

The rules are those of `ml_goodput_measurement`, and are implemented there alone: what runs here over all events of a
job is its ledger, and all that is left to SQL are sums of integers.
"""

from ml_diagnostics_fleet._version import __version__

__all__ = ["__version__"]
