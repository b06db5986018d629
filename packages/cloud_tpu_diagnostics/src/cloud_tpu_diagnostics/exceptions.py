"""The errors of this library: `ConfigurationError` for a wrong argument; nothing else reaches a job."""

from __future__ import annotations

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

__all__ = ["ConfigurationError", "DiagnosticsError"]
