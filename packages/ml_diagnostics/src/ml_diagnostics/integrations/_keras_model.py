"""TimedModel: the functions with which Keras trains, saves and restores a model, with records of each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ml_diagnostics.integrations._training import Training

__all__ = ["TimedModel"]

_PHASES = {"save": "checkpoint_save", "save_weights": "checkpoint_save", "load_weights": "checkpoint_restore"}
"""The methods with which other callbacks save and restore a model."""
_END: Any = object()
_ENDS_OF_DATA = ("StopIteration", "OutOfRangeError")
"""The exceptions with which Keras learns that there is no further batch; the second one is TensorFlow's."""


class TimedModel:
    """A model with functions replaced, from the start of `fit` to its end.

    Keras has hooks before and after a step, but none of them shows the step: with the JAX backend it loads the batch
    between them, and the hook after a step runs in another thread, later, unless it makes each step wait for the
    device. The function that it calls for each step shows both, and the exception that ends a training.

    Attributes:
        next_step: The number of the next step.
    """

    def __init__(self, model: Any, training: Training, *, loads_within_step: bool) -> None:
        """Replace the functions.

        Args:
            model: The model, of which Keras has made the training function.
            training: The destination of the records.
            loads_within_step: True if the training function takes an iterator, and loads the batch.
        """
        self.next_step = 0
        self._model = model
        self._training = training
        self._originals = {name: vars(model).get(name) for name in ("train_function", *_PHASES)}
        timed = self._timed_loads if loads_within_step else self._timed_step
        model.train_function = self._until_exception(timed(model.train_function))
        for name, phase in _PHASES.items():
            setattr(model, name, training.timed(getattr(model, name), phase))

    def restore(self) -> None:
        """Give the model its own functions back."""
        for name, original in self._originals.items():
            if original is not None:
                setattr(self._model, name, original)
            elif name in vars(self._model):
                delattr(self._model, name)

    def _until_exception(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def train(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                if type(error).__name__ in _ENDS_OF_DATA:
                    self._training.pause()
                else:
                    self.restore()
                    self._training.end(error)
                raise

        return train

    def _timed_loads(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda state, batches: function(state, self._steps(batches))

    def _steps(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._training.load()
            batch = next(batches, _END)
            if batch is _END:
                return
            self._start_step()
            yield batch

    def _timed_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def train(*arguments: Any) -> Any:
            self._start_step()
            logs = function(*arguments)
            self._training.load()
            return logs

        return train

    def _start_step(self) -> None:
        self._training.step(self.next_step)
        self.next_step += 1
