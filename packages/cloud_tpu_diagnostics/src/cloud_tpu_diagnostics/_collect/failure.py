"""The exception with which a block was left, as its companion receives it."""

from __future__ import annotations

from typing import Any

__all__ = ["failure_message", "is_failure"]


def is_failure(error: BaseException) -> bool:
    """Return False for Ctrl-C, for an exit with 0, and for a generator that is closed.

    To describe an exception takes some ten milliseconds in a process that has not done so before.
    """
    if isinstance(error, SystemExit):
        return bool(error.code)
    return not isinstance(error, (GeneratorExit, KeyboardInterrupt))


def failure_message(error: BaseException) -> dict[str, Any]:
    """Return what the companion records of an exception; never raise.

    Returns:
        `fields` of the entry, and `paths`, of which the companion measures the file systems: one that does not answer
        must not keep the job.
    """
    from ml_diagnostics_common.raised_exception import describe_exception, exception_fields, failed_paths

    try:
        raised = describe_exception(error)
        return {"fields": exception_fields(raised), "paths": failed_paths(raised)}
    except Exception:
        return {}
