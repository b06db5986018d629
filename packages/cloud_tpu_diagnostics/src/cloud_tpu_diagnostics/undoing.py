"""What was turned on is turned off again: all of it, the last first, whatever fails or interrupts."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["undo_all"]


def undo_all(steps: list[Callable[[], object] | None]) -> None:
    """Takes steps from the end of a list, each off it once it is done: after an interruption the rest can be done.

    An ExitStack forgets the step that a KeyboardInterrupt breaks off.

    Args:
        steps: Each may be taken twice; None is no step.

    Raises:
        RecursionError: The rest is still to be done.
        Exception: The first of what the steps have raised, after all of them.
    """
    failure: Exception | None = None
    while steps:
        try:
            step = steps[-1]
            if step is not None:
                step()
        except RecursionError:
            raise  # The caller is too deep; further up it can be done.
        except Exception as error:
            failure = failure or error
        steps.pop()
    if failure is not None:
        raise failure
