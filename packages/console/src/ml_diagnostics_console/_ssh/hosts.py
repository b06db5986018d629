"""The host that the user names, and the route to it from this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.environment import identity

from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._facts.targets import Target, cluster_of, targets_of
from ml_diagnostics_console._ssh.routes import Machine, Route, route_to

__all__ = ["find_host", "route_from_here"]

_KEY: Final = "~/.ssh/google_compute_engine"
"""The key that gcloud makes; with `--plain` it does not choose it."""


def find_host(facts: Facts, name: str) -> Target:
    """Return the process or pod of a host.

    Args:
        facts: The job.
        name: The host's name, the pod's, or the index of a process.

    Raises:
        NotFoundError: The job has no such host, or none has recorded anything.
    """
    try:
        found = targets_of(facts, name)
    except NotFoundError:
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise
        found = targets_of(facts, index=int(name))
    if not found:
        raise NotFoundError(f"no process of {facts.name} has recorded anything yet, and no pod of it is known")
    return found[0]


def route_from_here(facts: Facts, target: Target, program: Sequence[str], machine: Machine) -> Route:
    """Return the route to a target from this machine.

    Args:
        facts: The job.
        target: The process or pod.
        program: The user's command; empty for a shell.
        machine: Its location in Google Cloud, as the user gives it.

    Raises:
        CommandError: It cannot be reached.
    """
    key = os.path.expanduser(_KEY)  # noqa: PTH111 (a text of a command line)
    return route_to(
        target,
        program,
        cluster=cluster_of(facts),
        machine=machine,
        own_host=identity().host,
        key=key if os.path.exists(key) else "",  # noqa: PTH110
        has_terminal=sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty(),
    )
