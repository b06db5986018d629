"""Second name of what `cloud_tpu_diagnostics.configuration.diagnostic_configuration` has."""

from __future__ import annotations

from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig

__all__ = ["DiagnosticConfig"]
