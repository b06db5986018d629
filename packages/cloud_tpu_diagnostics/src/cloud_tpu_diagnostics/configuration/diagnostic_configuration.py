"""All that `diagnose` is given."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig

__all__ = ["DiagnosticConfig"]


@dataclass
class DiagnosticConfig:
    """What `diagnose` does.

    Attributes:
        debug_config: None: nothing.
    """

    debug_config: DebugConfig | None = None
