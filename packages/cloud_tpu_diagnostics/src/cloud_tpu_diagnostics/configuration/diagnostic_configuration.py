"""The argument of `diagnose`."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig

__all__ = ["DiagnosticConfig"]


@dataclass
class DiagnosticConfig:
    """The configuration of `diagnose`.

    Attributes:
        debug_config: None turns everything off.
    """

    debug_config: DebugConfig | None = None
