"""Second name of what `cloud_tpu_diagnostics.configuration.debug_configuration` has."""

from __future__ import annotations

from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig

__all__ = ["DebugConfig"]
