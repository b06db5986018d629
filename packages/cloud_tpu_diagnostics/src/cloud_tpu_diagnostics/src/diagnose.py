"""Second name of what `cloud_tpu_diagnostics.diagnostic` has."""

from __future__ import annotations

from cloud_tpu_diagnostics.diagnostic import diagnose

__all__ = ["diagnose"]
