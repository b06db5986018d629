"""The steps and evaluations of a training loop of PyTorch: pure.

An optimizer's step ends a step, so the next one starts there, or when its batch is loaded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from ml_diagnostics._inference.rhythm import Rhythm

__all__ = ["TorchRhythm"]

_MANY_STEPS: Final = 20
"""After so many steps of one optimizer without one of another, they are no longer parts of one step."""


class TorchRhythm:
    """Infers steps from one optimizer, and evaluations from the mode of modules."""

    def __init__(self, rhythm: Rhythm, evaluated: Callable[[float, float], None]) -> None:
        """Start without steps.

        Args:
            rhythm: Receives the steps.
            evaluated: Called with start and end of each evaluation.
        """
        self.has_steps = False
        self._rhythm = rhythm
        self._evaluated = evaluated
        self._optimizer: Callable[[], object | None] = _no_optimizer
        """The optimizer that counts: the one of the first step. Others, as of a discriminator, are within steps."""
        self._other: Callable[[], object | None] = _no_optimizer
        """The first optimizer that made a step after the last one of that which counts: perhaps of the next stage."""
        self._other_steps: list[tuple[float, float]] = []
        """The start and the end of each of its steps, as if it counted."""
        self._free_from = 0.0
        """The end of what the program did before the step in which it is."""
        self._usual = 0.0
        """The time from the start of the last step to that of its optimizer."""
        self._first: tuple[float, float] | None = None
        self._evaluates_since: float | None = None

    def optimized(self, optimizer: object, start: float, end: float) -> None:
        """Note a step of an optimizer."""
        counting = self._optimizer()
        if counting is None:
            if self.has_steps:
                self._start_other(optimizer, start)
            self._optimizer, self.has_steps = weakref.ref(optimizer), True
        elif optimizer is not counting:
            self._note_other(optimizer, start, end)
            return
        self._other, self._other_steps = _no_optimizer, []
        self._end_evaluation(start - self._usual)  # Where the module was not set to training again.
        if self._free_from:
            self._usual = max(0.0, start - self._free_from)
            self._start_first(start)
            self._rhythm.started(min(self._free_from, start))
            self._rhythm.ended()
        else:
            self._first = (start, end)  # Its start is not known: the second step shows how long one takes.
        self._free_from = end

    def loaded(self, end: float) -> None:
        """Note that a batch was loaded."""
        if not self._evaluates_since:
            self._free_from = end

    def changed_mode(self, module: Any, time: float, *, is_training: bool) -> None:
        """Note that a module was set to training or to evaluation."""
        if not self.has_steps:
            return
        if is_training:
            self._end_evaluation(time)
        elif self._evaluates_since is None:
            self._evaluates_since = time

    def finish(self, time: float) -> None:
        """Note the end of the program."""
        if self._first is not None:
            self._start_first(self._first[1])
        self._end_evaluation(time)

    def _note_other(self, optimizer: object, start: float, end: float) -> None:
        """Keep a step of another optimizer, which counts from its first step on once it has made many."""
        other = self._other()
        if other is None:
            self._other, self._other_steps = weakref.ref(optimizer), []
        elif other is not optimizer:
            return
        before = self._other_steps[-1][1] if self._other_steps else start - self._usual
        self._other_steps.append((min(start, max(self._free_from, before)), end))
        if len(self._other_steps) >= _MANY_STEPS:
            self._start_other(optimizer, start)
            self._optimizer = weakref.ref(optimizer)

    def _start_other(self, optimizer: object, start: float) -> None:
        """Start the steps of the next stage that were kept; the preparation of the stage is not a part of them."""
        if self._first is not None:
            self._start_first(self._first[1])
        if self._other() is not optimizer:
            self._other_steps = []
        self._end_evaluation(self._other_steps[0][0] if self._other_steps else start - self._usual)
        for started, ended in self._other_steps:
            self._rhythm.started(started)
            self._rhythm.ended()
            self._free_from = max(self._free_from, ended)
        if not self._other_steps:
            self._free_from = max(self._free_from, start - self._usual)
        self._other, self._other_steps = _no_optimizer, []

    def _start_first(self, second_start: float) -> None:
        if self._first is not None:
            (start, end), self._first = self._first, None
            self._rhythm.started(start - max(0.0, second_start - end))

    def _end_evaluation(self, end: float) -> None:
        if self._evaluates_since is not None:
            start, self._evaluates_since = self._evaluates_since, None
            if end > start:
                self._evaluated(start, end)
                self._free_from = end


def _no_optimizer() -> None:
    return None
