"""The errors of commands, and the exit code of any error.

    CommandError               1  the command failed
    ├── UsageError             2  the command line is not valid
    ├── NotFoundError          3  the job, run, file, VM, pod, bucket or program does not exist
    ├── NotPermittedError      4  no credentials, or no permission
    ├── TimedOutError          5  no answer in time
    └── DeclinedError          1  the user answered no

Exit codes that only one command has start at 10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

if TYPE_CHECKING:
    from ml_diagnostics_common.failures import Kind

__all__ = [
    "DONE",
    "EXIT_CODES",
    "FAILED",
    "INTERRUPTED",
    "NOT_FOUND",
    "NOT_PERMITTED",
    "TIMED_OUT",
    "USAGE",
    "CommandError",
    "DeclinedError",
    "NotFoundError",
    "NotPermittedError",
    "TimedOutError",
    "UsageError",
    "class_of",
    "class_of_kind",
    "exit_code_of",
]

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_PERMITTED: Final = 4
TIMED_OUT: Final = 5
INTERRUPTED: Final = 130
EXIT_CODES: Final = (
    "exit codes: 0 done, 1 failed, 2 usage error, 3 not found, 4 no credentials or no permission, 5 timed out, "
    "130 interrupted"
)


class CommandError(DiagnosticsError):
    """A command failed. The message contains what happened, to what, and what to do.

    Attributes:
        exit_code: The exit code of the process.
    """

    exit_code: ClassVar[int] = FAILED


class UsageError(CommandError):
    """The command line is not valid."""

    exit_code = USAGE


class NotFoundError(CommandError):
    """A job, run, file, VM, pod, bucket, profile or local program does not exist."""

    exit_code = NOT_FOUND


class NotPermittedError(CommandError):
    """There are no credentials, or they lack a permission."""

    exit_code = NOT_PERMITTED


class TimedOutError(CommandError):
    """The command timed out; the message contains what may remain."""

    exit_code = TIMED_OUT


class DeclinedError(CommandError):
    """The user answered no."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error.

    Args:
        error: One of these classes, or an error of a library.
    """
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, FileNotFoundError) and error.filename:  # Without a name, it is not about a file of the user.
        return NOT_FOUND
    if isinstance(error, ConfigurationError):
        return USAGE
    return class_of(error).exit_code


def class_of(error: BaseException) -> type[CommandError]:
    """Return the class of these for a failure of a remote call or a file."""
    from ml_diagnostics_common.failures import classify

    failure = classify(error)
    return TimedOutError if getattr(error, "is_temporary", failure.is_temporary) else class_of_kind(failure.kind)


def class_of_kind(kind: Kind | None) -> type[CommandError]:
    """Return the class of these for a kind of failure that is not temporary."""
    from ml_diagnostics_common.failures import Kind

    if kind is Kind.REFUSED:
        return NotPermittedError
    return NotFoundError if kind is Kind.MISSING else CommandError
