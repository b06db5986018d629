"""Imports in threads of ours, such as those of Google's clients: no process is forked meanwhile.

While a thread imports a module it holds the module's lock. A child that is forked in that moment has the lock and not
the thread: it would wait for ever when it imports that module itself, as the workers of data loaders do.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.process_hooks import ForkLock

__all__ = ["import_clients", "import_undisturbed"]

_CLIENTS = (
    "google.auth.compute_engine",
    "google.auth.transport.mtls",
    "google.auth.transport.requests",
    "google.oauth2.credentials",
    "google.oauth2.service_account",
    "configparser",
    "encodings.idna",
    "netrc",
    "ml_diagnostics_common._bounded_adapter",
)

logger = job_logger("ml_diagnostics")

_IMPORT_LOCK: Final = ForkLock()


def import_clients(*others: str) -> None:
    """Import what all of Google's clients need, as far as it is installed: whoever needs the rest reports that.

    Args:
        *others: The full names of modules that are imported too.
    """
    import_undisturbed(*_CLIENTS, *others)


def import_undisturbed(*names: str) -> None:
    """Import modules, while which no other thread forks; those that cannot be imported are left out.

    It costs nothing where they have been imported before.

    Args:
        *names: The modules' full names.
    """
    names = tuple(name for name in names if name not in sys.modules)
    if not names:
        return
    with _IMPORT_LOCK.held():
        for name in names:
            try:
                import_module(name)
            except Exception as error:
                logger.debug("%s cannot be imported: %s", name, error)
