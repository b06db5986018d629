"""The errors of the command, and their exit codes.

XprofilerError             1  the command failed
├── UsageError             2  the command line is not valid
├── NotFoundError          3  the VM, pod, bucket, profile or program does not exist
├── NotPermittedError      4  no credentials, or no permission
├── TimedOutError          5  the command timed out
└── DeclinedError          1  the user answered no

The base class is `DiagnosticsError`, as in all our libraries.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

__all__ = [
    "DONE",
    "EXIT_CODES",
    "INTERRUPTED",
    "DeclinedError",
    "NotFoundError",
    "NotPermittedError",
    "TimedOutError",
    "UsageError",
    "XprofilerError",
    "class_of",
    "exit_code_of",
]

DONE: Final = 0
INTERRUPTED: Final = 130
EXIT_CODES: Final = (
    "exit codes: 0 done, 1 failed or declined, 2 not understood, 3 not found, 4 credentials or permission, "
    "5 timed out, 130 interrupted"
)


class XprofilerError(DiagnosticsError):
    """A command failed. The message contains what happened, to what, and what to do.

    Attributes:
        exit_code: The exit code of the process.
    """

    exit_code: ClassVar[int] = 1


class UsageError(XprofilerError):
    """The command line is not valid."""

    exit_code = 2


class NotFoundError(XprofilerError):
    """A VM, pod, bucket, profile or local program does not exist."""

    exit_code = 3


class NotPermittedError(XprofilerError):
    """There are no credentials, or they lack a permission."""

    exit_code = 4


class TimedOutError(XprofilerError):
    """The command timed out; the message contains what may remain."""

    exit_code = 5


class DeclinedError(XprofilerError):
    """The user answered no."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error.

    Args:
        error: One of these classes, or an error of a library below.
    """
    if isinstance(error, XprofilerError):
        return error.exit_code
    if (
        isinstance(error, FileNotFoundError) and error.filename
    ):  # Without a file name, it is not about a file of the user.
        return NotFoundError.exit_code
    if isinstance(error, ConfigurationError):
        return UsageError.exit_code
    return class_of(error).exit_code if isinstance(error, DiagnosticsError) else XprofilerError.exit_code


def class_of(error: BaseException) -> type[XprofilerError]:
    """Return the class of ours for the failure of a remote call."""
    from ml_diagnostics_common.failures import Kind, classify

    failure = classify(error)
    if failure.is_temporary:
        return TimedOutError
    return {Kind.REFUSED: NotPermittedError, Kind.MISSING: NotFoundError}.get(failure.kind, XprofilerError)
