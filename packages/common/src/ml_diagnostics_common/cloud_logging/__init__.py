"""Cloud Logging: writing and reading entries, over REST or gRPC.

`connect` finds a cloud and returns a transport; `CloudLoggingReader` reads a log as an `EntryReader`, `QueryReader` a
query. Google's client libraries are imported when a transport is made, not before.
"""

from ml_diagnostics_common.cloud_logging._connecting import connect, make_transport
from ml_diagnostics_common.cloud_logging._filters import any_of, full_log_name, query_filter, quoted
from ml_diagnostics_common.cloud_logging._queries import PageReader, QueryReader
from ml_diagnostics_common.cloud_logging._reader import CloudLoggingReader
from ml_diagnostics_common.cloud_logging._transport import (
    LoggingTransport,
    Page,
    TransportError,
)

__all__ = [
    "CloudLoggingReader",
    "LoggingTransport",
    "Page",
    "PageReader",
    "QueryReader",
    "TransportError",
    "any_of",
    "connect",
    "full_log_name",
    "make_transport",
    "query_filter",
    "quoted",
]
