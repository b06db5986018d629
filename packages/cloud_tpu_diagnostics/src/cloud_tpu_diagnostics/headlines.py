"""How the lines begin that introduce our own stack traces: a module apart, as their readers compile long patterns."""

from __future__ import annotations

from typing import Final

__all__ = ["EXCEPTION_START", "HEADER_START"]

HEADER_START: Final = "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every "
EXCEPTION_START: Final = "Exception left diagnose()"
