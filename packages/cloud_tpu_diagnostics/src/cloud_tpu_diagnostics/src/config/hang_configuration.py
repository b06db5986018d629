"""Second name of what `cloud_tpu_diagnostics.configuration.hang_configuration` has."""

from __future__ import annotations

from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

__all__ = ["HangConfig"]
