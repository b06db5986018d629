"""The journals of this process: the names of their writers, and what a fork and the exit do to them."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path
from typing import Protocol

from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.process_hooks import ExitOrder, LiveObjects, at_exit, at_fork

__all__ = [
    "OwnJournal",
    "add_journal",
    "flush_journals",
    "host_name",
    "is_writer_of_this_process",
    "new_writer",
    "own_writers",
]

_EXIT_SECONDS = 1.0  # For all journals together.


class OwnJournal(Protocol):
    """The methods of a journal that a fork and the exit of the process call; `_journal` itself imports this module."""

    @property
    def folder(self) -> Path:
        """The folder of its log."""
        ...

    def start_clean_in_child(self) -> None:
        """Drop what belongs to the parent process; called in a forked child."""
        ...

    def flush(self, timeout_seconds: float) -> bool:
        """Write what is held; return True if nothing is held any more."""
        ...

    def close(self, timeout_seconds: float) -> object:
        """Write what is held, and close the file."""
        ...

    def warn_losses(self) -> None:
        """Warn of entries that were not written, if there are any."""
        ...


# State of the process: its journals (for a fork and the exit), its writers, and a number that distinguishes them.
_journals_of_this_process: LiveObjects[OwnJournal] = LiveObjects()
_writers_of_this_process = itertools.count()
_writer_names_of_this_process: set[str] = set()


def add_journal(journal: OwnJournal) -> None:
    """Have a journal start clean in forked children, and written to the end when the process exits."""
    _journals_of_this_process.add(journal)


def new_writer() -> str:
    """Return a name that no other writer has, on this host or another."""
    writer = f"{host_name()}-{os.getpid()}-{time.time_ns()}-{next(_writers_of_this_process)}"
    _writer_names_of_this_process.add(writer)
    return writer


def host_name() -> str:
    """Return this host's name as in names of writers: its first label, in letters, digits, _ and -."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return re.sub(r"[^A-Za-z0-9_-]", "-", name.partition(".")[0])[:63] or "host"


def is_writer_of_this_process(writer: str) -> bool:
    """Return True if a journal of this very process writes, or wrote, under this name."""
    return writer in _writer_names_of_this_process


def own_writers() -> frozenset[str]:
    """Return the names under which journals of this very process write, or wrote."""
    return frozenset(_writer_names_of_this_process.copy())


def flush_journals(folder: Path, timeout_seconds: float) -> bool:
    """Write what this process's journals in a log's folder hold, within one deadline; True if nothing is held."""
    deadline = time.monotonic() + timeout_seconds
    flushed = True
    for journal in _journals_of_this_process:
        if journal.folder == folder:
            flushed = journal.flush(max(0.0, deadline - time.monotonic())) and flushed
    return flushed


def _start_clean_in_child() -> None:
    _writer_names_of_this_process.clear()
    for journal in _journals_of_this_process:
        journal.start_clean_in_child()


def _close_at_exit() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for journal in _journals_of_this_process:
        try:
            journal.close(max(0.0, deadline - time.monotonic()))
            journal.warn_losses()
        except Exception as error:
            LOSSES.add(f"close at exit: {type(error).__name__}")


at_fork(_start_clean_in_child)
at_exit(_close_at_exit, ExitOrder.JOURNALS)
