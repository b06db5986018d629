"""The time of a job before its first step: training preparation, but for the phases in it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Preparation", "PreparationRecorder"]


class PreparationRecorder(Protocol):
    """The recorder of the preparation: goodput's."""

    def record_training_preparation_start_time(self) -> None:
        """Record that the preparation starts."""
        ...

    def record_training_preparation_end_time(self) -> None:
        """Record that the preparation has ended."""
        ...


class Preparation:
    """Records what a job does before its first step, so that a report does not show it as unknown."""

    def __init__(self, recorder: PreparationRecorder | None = None) -> None:
        """Record that the preparation starts.

        Args:
            recorder: Receives its start and its end; None records nothing.
        """
        self._recorder = recorder
        self.resume()

    def end(self) -> None:
        """Record that the preparation has ended, if it has not ended before."""
        self.pause()
        self.forget()

    def forget(self) -> None:
        """Record nothing further."""
        self._recorder = None

    def pause(self) -> None:
        """Record that a phase starts, which is not a part of the preparation."""
        if self._recorder is not None:
            self._recorder.record_training_preparation_end_time()

    def resume(self) -> None:
        """Record that the preparation goes on after a phase, unless a step has started meanwhile."""
        if self._recorder is not None:
            self._recorder.record_training_preparation_start_time()
