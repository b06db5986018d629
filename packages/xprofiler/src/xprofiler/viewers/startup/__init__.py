"""What a viewer VM runs when it starts, and what it tells of that."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["STARTUP_SCRIPT", "XPROF_VERSION"]

STARTUP_SCRIPT: Final = Path(__file__).with_name("startup_script.sh")
"""It is the same for every VM: it reads from the metadata server what differs."""

XPROF_VERSION: Final = "2.24.2"
"""The release of xprof that viewers run, and whose server the script starts by name."""
