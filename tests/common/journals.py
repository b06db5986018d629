"""Common parts of the tests of the journal."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.reader import JournalReader

LOG = "goodput_run7"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now_ns: int = 1_763_710_310_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def new_journal(root: Path, **options: Any) -> Journal:
    return Journal(LOG, root=root, labels={"job": "run7", "pid": "0"}, **options)


def read_all(root: Path, log_id: str = LOG) -> list[LogEntry]:
    return [entry for batch in JournalReader(log_id, root=root).read_new() for entry in batch]


def numbers(entries: list[LogEntry]) -> list[Any]:
    """The `n` of each entry's payload, in the order of the entries."""
    return [entry.payload["n"] for entry in entries if "n" in entry.payload]


def reported_losses(entries: list[LogEntry]) -> Counter[str]:
    """Return the losses that the log itself reports."""
    total: Counter[str] = Counter()
    for entry in entries:
        total.update(entry.payload.get("lost_entries", {}))
    return total


def assert_adds_up(journal: Journal, root: Path) -> None:
    """Every entry accepted is on disk, held, or counted as dropped: no other."""
    accepted, written, held, dropped = journal.statistics()
    assert accepted == written + held + sum(dropped.values())
    assert written == len(read_all(root))


def run_python(script: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=check
    )
