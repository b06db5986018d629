"""Stack traces as they were recorded, for programs that read the entries: dumps parsed, and threads by equal stack."""

from __future__ import annotations

from cloud_tpu_diagnostics._dumps.grouping import (
    JobPicture,
    ProcessDump,
    ProcessGroup,
    activity_of,
    comparable_frames,
    describe,
    group_threads,
    is_compiler,
    main_thread,
    plural,
    short_path,
)
from cloud_tpu_diagnostics._dumps.parser import Dump, Frame, ThreadStack, parse_dumps
from cloud_tpu_diagnostics._dumps.snapshot import Snapshot
from cloud_tpu_diagnostics._stacks.history import StackHistory, StackPicture, odd_groups
from cloud_tpu_diagnostics._stacks.trace_files import dumps_of_processes

__all__ = [
    "Dump",
    "Frame",
    "JobPicture",
    "ProcessDump",
    "ProcessGroup",
    "Snapshot",
    "StackHistory",
    "StackPicture",
    "ThreadStack",
    "activity_of",
    "comparable_frames",
    "describe",
    "dumps_of_processes",
    "group_threads",
    "is_compiler",
    "main_thread",
    "odd_groups",
    "parse_dumps",
    "plural",
    "short_path",
]
