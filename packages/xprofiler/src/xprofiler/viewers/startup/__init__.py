"""Programs that viewers run when they start, and the status that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["STARTUP_SCRIPT", "XPROF_VERSION"]

STARTUP_SCRIPT: Final = Path(__file__).with_name("startup_script.sh")
"""The same script for every VM: it reads its parameters from the metadata server."""

XPROF_VERSION: Final = "2.24.2"
"""The release of xprof that viewers run. The script starts a module of this release by name."""
