"""ProcessOutcome, in a module of its own: trainers import it without the modules that read a log."""

from __future__ import annotations

import enum

__all__ = ["ProcessOutcome"]


class ProcessOutcome(str, enum.Enum):
    """The outcome of a process that has not recorded the end of its job."""

    RETURNED = "returned"
    """It reached the last line of its program."""
    EXITED = "exited"
    """It ended by a SystemExit of any exit code, or out of an interactive session."""
    FAILED = "failed"
    """It ended by an uncaught exception."""
