"""Cloud Logging: writing and reading entries, over REST or gRPC.

`connect` finds a cloud and returns a transport; `CloudLoggingReader` reads a log as an `EntryReader`. Google's client
libraries are imported when a transport is made, not before.
"""

from ml_diagnostics_common.cloud_logging.connecting import connect, make_transport
from ml_diagnostics_common.cloud_logging.filters import full_log_name
from ml_diagnostics_common.cloud_logging.pages import pages
from ml_diagnostics_common.cloud_logging.reader import CloudLoggingReader
from ml_diagnostics_common.cloud_logging.transport import (
    LoggingTransport,
    Page,
    TransportError,
)

__all__ = [
    "CloudLoggingReader",
    "LoggingTransport",
    "Page",
    "TransportError",
    "connect",
    "full_log_name",
    "make_transport",
    "pages",
]
