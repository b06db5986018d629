"""The output of a job: `python -m cloud_tpu_diagnostics run` passes it on, and the last lines are recorded.

memory    a file in memory that one stream of the job is appended to, and freed behind the last lines
stream    passes a stream on as it grows, without the job ever waiting for a reader
capture   the streams of a job that are captured, and which of them share a file
segments  the last megabytes of a stream, on disk
marks     when the bytes of a stream were printed: pure
tail      the last lines of another process's streams
ring      the last lines that Python prints, where no file has them
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ["CONSOLE_VARIABLE", "RING_PREFIX", "is_console_kept"]

CONSOLE_VARIABLE: Final = "ML_DIAGNOSTICS_CONSOLE"
"""Environment variable: `off` keeps no last lines of what a job prints."""

RING_PREFIX: Final = "printed_"
"""The start of the names of descriptors of rings; the rest is the stream."""


def is_console_kept(environ: Mapping[str, str] = os.environ) -> bool:
    """Return False if the user wants no last lines of the job to be kept."""
    return environ.get(CONSOLE_VARIABLE, "").strip().lower() != "off"
