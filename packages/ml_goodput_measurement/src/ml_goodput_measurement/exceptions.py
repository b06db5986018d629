"""The errors of this library.

    ml_diagnostics_common.DiagnosticsError
    └── GoodputError
        └── NoGoodputError            (also a ValueError) what was recorded does not say how the job's time went

A wrong argument of a constructor is `ml_diagnostics_common`'s ConfigurationError, also a ValueError; a missing cloud
its CredentialsError. Recording calls raise nothing at all.
"""

from __future__ import annotations

from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, DiagnosticsError

__all__ = ["ConfigurationError", "CredentialsError", "GoodputError", "NoGoodputError"]


class GoodputError(DiagnosticsError):
    """Base of this library's own errors."""


class NoGoodputError(GoodputError, ValueError):
    """Nothing was recorded for the job, or nothing that goodput can be computed from."""
