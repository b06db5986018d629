"""The journal: where entries are written first, and stay until they are not needed."""

from __future__ import annotations

from ml_diagnostics_common.journal._cap import JournalCap
from ml_diagnostics_common.journal.jobs import jobs_by_log, newest_job, processes_of_job
from ml_diagnostics_common.journal.journal import Journal, JournalStatistics
from ml_diagnostics_common.journal.layout import log_directory
from ml_diagnostics_common.journal.own_journals import host_name

__all__ = [
    "Journal",
    "JournalCap",
    "JournalStatistics",
    "host_name",
    "jobs_by_log",
    "log_directory",
    "newest_job",
    "processes_of_job",
]
