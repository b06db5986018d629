"""The stack of an exception that leaves a block, as text that `traces` reads again like faulthandler's."""

from __future__ import annotations

from ml_diagnostics_common.raised_exception import CodeLocation, describe_exception

from cloud_tpu_diagnostics.headlines import EXCEPTION_START

__all__ = ["exception_dump"]


def exception_dump(error: BaseException, step: int | None) -> str:
    """Return lines with the exception, where it was raised, and what it is linked to; never raises.

    Args:
        error: What the block was left with.
        step: In which step, where the job published one.
    """
    lines = []
    for raised in describe_exception(error):
        if raised.relation:
            lines.append(f"{raised.relation.capitalize()} {raised.title}")
        else:
            lines.append(f"{EXCEPTION_START}{'' if step is None else f' at step {step}'}: {raised.title}")
        lines.append("Stack (most recent call first):")
        lines += [_line(frame) for frame in raised.frames]
    return "".join(f"{line}\n" for line in lines)


def _line(frame: CodeLocation) -> str:
    if not frame.file:
        return f"  <{frame.function.strip('. ')}>"
    return f'  File "{frame.file}", line {frame.line or "???"} in {frame.function}'
