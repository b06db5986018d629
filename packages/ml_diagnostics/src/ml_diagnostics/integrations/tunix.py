"""Tunix: training hooks, data hooks, and a back end for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import Any

from ml_diagnostics import current
from ml_diagnostics.integrations._training import Training, requires

with requires("tunix", "google-tunix"):
    from tunix.sft.hooks import DataHooks, TrainingHooks

__all__ = ["DiagnosticsBackend", "DiagnosticsDataHooks", "DiagnosticsHooks"]


class DiagnosticsHooks(TrainingHooks):
    """Record what `train` does; take the arguments of `instrument`, none in a process that is instrumented."""

    def __init__(self, name: str | None = None, **options: Any) -> None:
        self.training = Training(name, options)
        self.step = -1

    def on_train_start(self, train_ctx: Any) -> None:
        self.training.start()

    def on_train_step_start(self, train_ctx: Any) -> None:
        if train_ctx.train_steps != self.step:  # Equal while gradients are accumulated.
            self.step = train_ctx.train_steps
            self.training.step(self.step)

    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: Any, *_: Any) -> None:
        """Record nothing: Tunix calls it later, when it has the metrics, which it sends to `DiagnosticsBackend`."""

    def on_eval_step_start(self, train_ctx: Any) -> None:
        self.training.phase("evaluation")

    def on_eval_step_end(self, train_ctx: Any, eval_loss: Any) -> None:
        self.training.pause()

    def on_train_end(self, train_ctx: Any) -> None:
        self.training.end()


class DiagnosticsDataHooks(DataHooks):
    """Load the batches as Tunix does, and record the time: it has no other hook between two steps."""

    def __init__(self, hooks: DiagnosticsHooks, train_data: Iterable[Any], eval_data: Iterable[Any] = ()) -> None:
        self._hooks, self._data = hooks, train_data
        self._batches: Iterator[Any] | None = None
        self._eval_batches = chain.from_iterable(chain(eval_data, [None]) for _ in count())

    def load_next_train_batch(self, train_ctx: Any) -> Any:
        self._batches = self._batches or islice(self._data, train_ctx.iter_steps, None)  # As Tunix resumes.
        if train_ctx.train_steps == self._hooks.step:  # Gradients are accumulated.
            return next(self._batches, None)
        batch = self._hooks.training.timed(next, "data_loading")(self._batches, None)
        limit = train_ctx.config.max_steps
        if batch is None or (limit is not None and train_ctx.train_steps >= limit):
            self._batches = None
        else:
            self._hooks.on_train_step_start(train_ctx)  # Tunix waits for the device before it calls its hook.
        return batch

    def load_next_eval_batch(self, train_ctx: Any) -> Any:
        return next(self._eval_batches)


class DiagnosticsBackend:
    """Record scalars: `MetricsLoggerOptions(folder, backend_kwargs={"custom_backend": [DiagnosticsBackend]})`."""

    def log_scalar(self, event: str, value: Any, **kwargs: Any) -> None:
        if not event.startswith("/jax/"):  # Tunix passes JAX's own scalars, too, such as the times of compilations.
            current().log({event.strip("/"): value}, step=kwargs.get("step"))

    def close(self) -> None:
        """Do nothing: each value was recorded at once."""
