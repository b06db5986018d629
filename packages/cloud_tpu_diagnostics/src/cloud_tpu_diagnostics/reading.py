"""Stack traces as they were recorded, for programs that read the entries: dumps parsed, and threads by equal stack."""

from __future__ import annotations

from cloud_tpu_diagnostics._dumps.grouping import comparable_frames, is_compiler, main_thread
from cloud_tpu_diagnostics._dumps.parser import Dump, Frame, ThreadStack, parse_dumps
from cloud_tpu_diagnostics._dumps.snapshot import Snapshot

__all__ = [
    "Dump",
    "Frame",
    "Snapshot",
    "ThreadStack",
    "comparable_frames",
    "is_compiler",
    "main_thread",
    "parse_dumps",
]
