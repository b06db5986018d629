"""The journal: where entries are written first, and stay until they are not needed."""

from __future__ import annotations

from ml_diagnostics_common.journal._cap import JournalCap
from ml_diagnostics_common.journal._jobs import (
    ProcessStart,
    is_open,
    jobs_by_log,
    last_payloads,
    newest_job,
    newest_writers,
    processes_of_job,
    processes_that_ended,
    writer_start_ns,
)
from ml_diagnostics_common.journal._journal import Journal, JournalStatistics
from ml_diagnostics_common.journal._layout import (
    Header,
    JournalPosition,
    Segment,
    encode_own_fields,
    list_segments,
    log_directory,
    log_folder_name,
    read_header,
    shipped_position,
)
from ml_diagnostics_common.journal._own_journals import host_name

__all__ = [
    "Header",
    "Journal",
    "JournalCap",
    "JournalPosition",
    "JournalStatistics",
    "ProcessStart",
    "Segment",
    "encode_own_fields",
    "host_name",
    "is_open",
    "jobs_by_log",
    "last_payloads",
    "list_segments",
    "log_directory",
    "log_folder_name",
    "newest_job",
    "newest_writers",
    "processes_of_job",
    "processes_that_ended",
    "read_header",
    "shipped_position",
    "writer_start_ns",
]
