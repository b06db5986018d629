"""Second name of what `cloud_tpu_diagnostics.configuration.debug_configuration` has, and of what acts on it."""

from __future__ import annotations

from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
from cloud_tpu_diagnostics.diagnostic import diagnose

__all__ = ["DebugConfig", "diagnose"]
