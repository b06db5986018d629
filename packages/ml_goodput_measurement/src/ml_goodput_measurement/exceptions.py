"""The errors of this library.

    ml_diagnostics_common.DiagnosticsError
    └── GoodputError
        ├── NoGoodputError            (also a ValueError) what was recorded does not say how the job's time went
        ├── CloudMonitoringError      a request to Cloud Monitoring failed as a whole
        └── MetadataError             this machine's metadata server is there, and did not answer well

A wrong argument of a constructor is `ml_diagnostics_common`'s ConfigurationError, also a ValueError; a missing cloud
its CredentialsError. Recording calls raise nothing at all.
"""

from __future__ import annotations

from typing import Any

from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, DiagnosticsError

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
    """Nothing was recorded for the job, or nothing that goodput can be computed from."""


class MetadataError(GoodputError):
    """The metadata server of this machine is there, and did not answer well, so that a value is not known yet."""


class CloudMonitoringError(GoodputError):
    """A request to Cloud Monitoring failed as a whole.

    Attributes:
        code: The code of google.rpc.Code by name, such as UNAVAILABLE.
        retry_after_seconds: How long the server asks us to wait; None when it does not say.
    """

    def __init__(self, code: str, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"Cloud Monitoring answered {code}: {message}")
        self.code, self._message = code, message
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self._message), {"retry_after_seconds": self.retry_after_seconds}

    @property
    def access(self) -> bool:
        """Whether a person must mend it: no credentials, no permission, or no such project."""
        return self.code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND")
