"""Keras 3: a callback that records the steps, data loading, evaluations, saves and metrics of `fit`."""

from __future__ import annotations

from typing import Any

from ml_diagnostics_common.guard import guarded

from ml_diagnostics.integrations._keras_model import TimedModel
from ml_diagnostics.integrations._training import Training, requires

with requires("keras"):
    import keras

__all__ = ["DiagnosticsCallback"]


class DiagnosticsCallback(keras.callbacks.Callback):
    """Record what `fit` does, in the job of the process, or in one that starts and ends with `fit`.

        model.fit(x, y, callbacks=[DiagnosticsCallback("digits")])

    Pass it as the first callback: it sees what later ones save and restore.
    """

    async_safe = True  # Else Keras waits for the device after each step, to pass the values of metrics.

    def __init__(self, name: str | None = None, **options: Any) -> None:
        """Take the arguments of `instrument`; none in a process that is instrumented."""
        super().__init__()
        self._training = Training(name, options)
        self._timed: TimedModel | None = None
        self._first_step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        self._training.start({**self.params, "optimizer": optimizer.get_config()} if optimizer else self.params)
        if self._timed is not None:
            self._timed.restore()  # An exception has left the training before.
        self._timed = TimedModel(self.model, self._training, loads_within_step=keras.backend.backend() == "jax")

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        timed, optimizer = self._timed, self.model.optimizer
        if timed is not None and optimizer:  # Its count of steps is restored with the model.
            done = int(optimizer.iterations) * (optimizer.gradient_accumulation_steps or 1)
            self._first_step = timed.next_step = max(timed.next_step, done)
        self._training.load()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._training.log(logs or {}, self._first_step + batch)

    @guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._training.pause()
        values = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
        if self._timed is not None and values:
            self._training.log(values, self._timed.next_step - 1)

    def on_test_begin(self, logs: Any = None) -> None:
        self._training.phase("evaluation")

    def on_test_end(self, logs: Any = None) -> None:
        self._training.pause()

    def on_train_end(self, logs: Any = None) -> None:
        if self._timed is not None:
            self._timed.restore()
        self._training.end()
