"""Pages of runs, for programs and notebooks: what the command `mldiagnostics show` prints."""

from __future__ import annotations

import functools
import logging

from google_cloud_mldiagnostics._cli.page import RunPage
from google_cloud_mldiagnostics._reading.run_source import LocalSource

__all__ = ["RunPage", "run_page"]

_logger = logging.getLogger(__name__)


def run_page(run: str = "last") -> RunPage:
    """Read a run of this machine, in all its attempts and on all processes that recorded here.

    Args:
        run: The run's id, the start of it if no other id has it, or `last`: the one that started last.

    Raises:
        RunNotFoundError: No run or several runs match.
    """
    return RunPage.read(LocalSource(functools.partial(_logger.warning, "%s")), run)
