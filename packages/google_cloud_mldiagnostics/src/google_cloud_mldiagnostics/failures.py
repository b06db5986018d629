"""How what ends a program fails its run, for people: short, and without secrets."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.redaction import redact_text

__all__ = ["UNSEEN_EXIT", "exit_failure", "failure_of"]

UNSEEN_EXIT: Final = "ended by a SystemExit whose code is not seen from inside"
"""The reason of a COMPLETED that somebody who sees the code may correct."""

_LONGEST_REASON: Final = 500


def failure_of(error: BaseException) -> str:
    """Returns how an exception that nobody catches fails a run; empty where it does not: `sys.exit(0)`."""
    if isinstance(error, SystemExit):
        return exit_failure(error.code)
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {redact_text(text[:_LONGEST_REASON])}" if text.strip() else name


def exit_failure(code: object) -> str:
    """Returns how `sys.exit(code)` fails a run; empty where it does not."""
    if code is None or (isinstance(code, int) and code == 0):
        return ""
    if isinstance(code, int):
        return f"sys.exit({int(code)})"
    try:
        return f"sys.exit: {redact_text(str(code)[:_LONGEST_REASON])}"
    except Exception:
        return "sys.exit(1)"
