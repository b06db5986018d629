"""The journal: where entries are written first, and stay until they are not needed."""

from __future__ import annotations

from ml_diagnostics_common.journal.cap import JournalCap
from ml_diagnostics_common.journal.journal import Journal, JournalStatistics, host_name

__all__ = ["Journal", "JournalCap", "JournalStatistics", "host_name"]
