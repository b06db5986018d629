"""Events of JAX and Orbax in a job that records its own steps: compilations, saves and restores, without a call."""

from __future__ import annotations

from typing import Any, Protocol

from ml_diagnostics._inference.inferred_events import InferredEvents
from ml_diagnostics._inference.jax_events import JaxEvents

__all__ = ["JobEvents", "Progress"]


class Progress(Protocol):
    """The progress of a loop over steps."""

    step: int | None
    """The step that started last; None before the first."""
    count: int
    """The number of steps that have started."""
    is_asynchronous: bool
    """True once the program is known to compute on devices, which may still compute a step that has returned."""


class JobEvents:
    """Records the events of JAX and Orbax beside what the program records.

    Nothing counts twice: what the program records at the same time with a phase, or Orbax with a `CheckpointLogger`, is
    one piece of the job's time. Compilations before the second step are the startup of the program.
    """

    def __init__(self, recorder: Any, progress: Progress) -> None:
        """Listen to nothing yet.

        Args:
            recorder: Goodput's recorder of the job.
            progress: The job's loop over steps.
        """
        self._records = InferredEvents(recorder)
        self._progress = progress
        self._events = JaxEvents(self)

    def open(self) -> None:
        """Listen as soon as the program has imported JAX."""
        self._events.open()

    def close(self) -> None:
        """Listen no longer."""
        self._events.close()
        self._records.finish()

    def compiled(self, function: str, start: float, end: float) -> None:
        """Record a compilation."""
        self._progress.is_asynchronous = True
        self._records.compiled(start, end, is_after_first_step=self._progress.count > 1)

    def used_cache(self, *, is_hit: bool) -> None:
        """Count a search of the compilation cache."""
        self._progress.is_asynchronous = True
        self._records.used_cache(is_hit=is_hit)

    def checkpointed(self, kind: str, step: int | None, start: float, end: float) -> None:
        """Record a save or a restore."""
        self._records.checkpointed(kind, (self._progress.step or 0) if step is None else step, start, end)

    def waited_for_save(self, start: float, end: float) -> None:
        """Record that the program waited for a save in the background."""
        self._records.waited_for_save(start, end)
