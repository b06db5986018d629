"""Goodput for programs that build on it: a job's ledger from entries, and the buckets as people and pages see them."""

from __future__ import annotations

from ml_goodput_measurement._cli.buckets import BUCKET_KEYS, BUCKET_NAMES, COLORS, column_shares
from ml_goodput_measurement._query.job_ledger import JobLedger

__all__ = ["BUCKET_KEYS", "BUCKET_NAMES", "COLORS", "JobLedger", "column_shares"]
