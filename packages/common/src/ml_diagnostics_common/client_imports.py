"""Google's clients are imported in threads of ours, and no process is forked meanwhile.

While a thread imports a module it holds the module's lock. A child that is forked in that moment has the lock and not
the thread: it would wait for ever when it imports that module itself, as the workers of data loaders do.
"""

from __future__ import annotations

import logging  # Its lock is taken before a fork too: after ours, since it registers first.
import os
import threading
from importlib import import_module

__all__ = ["import_clients", "import_undisturbed"]

_CLIENTS = (
    "google.auth.compute_engine",
    "google.auth.transport.requests",
    "google.oauth2.credentials",
    "google.oauth2.service_account",
    "ml_diagnostics_common.bounded_adapter",
)
_FORK_WAITS_SECONDS = 10.0

logger = logging.getLogger("ml_diagnostics")

# State of the process: held by the thread that imports, and by one that forks; and whether this thread has it for that.
_importing_in_this_process = threading.RLock()
_forking = threading.local()


def import_clients() -> None:
    """Imports what all of Google's clients stand on, so far as it is installed: whoever needs the rest says so."""
    import_undisturbed(*_CLIENTS)


def import_undisturbed(*names: str) -> None:
    """Imports modules, while which no other thread forks; those that cannot be imported are left out.

    Args:
        *names: The modules' full names.
    """
    with _importing_in_this_process:
        for name in names:
            try:
                import_module(name)
            except Exception as error:
                logger.debug("%s cannot be imported: %s", name, error)


def _before_fork() -> None:
    """Waits for the end of an import, a bounded time."""
    _forking.has_lock = _importing_in_this_process.acquire(timeout=_FORK_WAITS_SECONDS)


def _after_fork_in_parent() -> None:
    if getattr(_forking, "has_lock", False):
        _forking.has_lock = False
        _importing_in_this_process.release()


def _after_fork_in_child() -> None:
    global _importing_in_this_process
    _importing_in_this_process = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
