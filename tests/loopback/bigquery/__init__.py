"""BigQuery on loopback: describe tables, query views of some columns and a range of times, and read tables as Arrow."""

from .server import BigQueryServer, Break

__all__ = ["BigQueryServer", "Break"]
