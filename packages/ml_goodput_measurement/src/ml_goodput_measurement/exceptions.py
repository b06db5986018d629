"""The errors of this library.

    ml_diagnostics_common.DiagnosticsError
    └── GoodputError
        ├── NoGoodputError            (also a ValueError) the records do not suffice to compute goodput
        ├── CloudMonitoringError      a request to Cloud Monitoring failed as a whole
        └── MetadataError             this machine's metadata server failed to answer

An invalid argument of a constructor raises `ml_diagnostics_common`'s ConfigurationError, also a ValueError; a missing
cloud its CredentialsError. Recording calls never raise.
"""

from __future__ import annotations

from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, DiagnosticsError
from ml_diagnostics_common.failures import RemoteError

__all__ = [
    "CloudMonitoringError",
    "ConfigurationError",
    "CredentialsError",
    "GoodputError",
    "MetadataError",
    "NoGoodputError",
]


class GoodputError(DiagnosticsError):
    """Base of this library's own errors."""


class NoGoodputError(GoodputError, ValueError):
    """Nothing was recorded for the job, or not enough to compute goodput."""


class MetadataError(GoodputError):
    """The metadata server of this machine failed, so a value is not known yet."""


class CloudMonitoringError(RemoteError, GoodputError):
    """A request to Cloud Monitoring failed as a whole.

    Attributes:
        code: A name in google.rpc.Code, such as UNAVAILABLE.
        retry_after_seconds: The delay that the server asks for; None if it asks for none.
        access: True if a person must grant access: there are no credentials, no permission, or no such project.
    """

    service = "Cloud Monitoring"
