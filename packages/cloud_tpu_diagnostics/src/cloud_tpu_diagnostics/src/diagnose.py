"""Second name of what `cloud_tpu_diagnostics.diagnostic` has, and of what `src.debug` has."""

from __future__ import annotations

from cloud_tpu_diagnostics.diagnostic import diagnose
from cloud_tpu_diagnostics.src.debug import start_debugging, stop_debugging

__all__ = ["diagnose", "start_debugging", "stop_debugging"]
