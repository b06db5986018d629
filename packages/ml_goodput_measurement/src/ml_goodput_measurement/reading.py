"""Goodput for programs that build on it: a job's ledger, events as rows, and what commands and pages share."""

from __future__ import annotations

from ml_goodput_measurement._cli.buckets import BUCKET_KEYS, BUCKET_NAMES, COLORS, column_shares
from ml_goodput_measurement._cli.options import moment, price
from ml_goodput_measurement._ledger import PROCESS_GONE, RULES
from ml_goodput_measurement._ledger.event_rows import (
    KINDS,
    EventRow,
    EventRowReader,
    add_rows,
    batch_from_rows,
    rows_from_payloads,
)
from ml_goodput_measurement._ledger.events import EventBatch
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._query.job_ledger import JobLedger
from ml_goodput_measurement._query.job_state import JobFollower, JobState
from ml_goodput_measurement._query.payloads import payload_of, writer_of
from ml_goodput_measurement._query.sources import open_source

__all__ = [
    "BUCKET_KEYS",
    "BUCKET_NAMES",
    "COLORS",
    "KINDS",
    "PROCESS_GONE",
    "RULES",
    "EventBatch",
    "EventRow",
    "EventRowReader",
    "JobFollower",
    "JobLedger",
    "JobState",
    "Writer",
    "add_rows",
    "batch_from_rows",
    "column_shares",
    "moment",
    "open_source",
    "payload_of",
    "price",
    "rows_from_payloads",
    "writer_of",
]
