"""Lightning: a callback that records what `Trainer.fit` does, and a logger that records metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_diagnostics import current
from ml_diagnostics.integrations._training import Training, record_configs, requires

with requires("lightning"):
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

__all__ = ["DiagnosticsCallback", "DiagnosticsLogger"]


class DiagnosticsCallback(Callback):
    """Record what `fit` does, in the job of the process, or in one that starts and ends with `fit`.

        Trainer(callbacks=[DiagnosticsCallback("digits")], logger=DiagnosticsLogger()).fit(module, data)

    A step is one of the optimizer. The time between two is data loading, unless the trainer evaluates or saves.
    """

    def __init__(self, name: str | None = None, **options: Any) -> None:
        """Take the arguments of `instrument`; none in a process that is instrumented."""
        self._training = Training(name, options)
        self._step = -1

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._training.start()
            trainer.save_checkpoint = self._training.timed(trainer.save_checkpoint, "checkpoint_save")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        is_in_fit = trainer.state.fn == "fit"  # Nothing is loaded after `Trainer.validate`.
        (self._training.load if is_in_fit else self._training.pause)()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.load()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step != self._step:  # Equal while gradients are accumulated.
            self._step = trainer.global_step
            self._training.step(self._step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step != self._step:
            self._training.load()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end(trainer, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._end(trainer)

    def _end(self, trainer: Any, exception: BaseException | None = None) -> None:
        vars(trainer).pop("save_checkpoint", None)
        self._training.end(exception)
        self._step = -1


class DiagnosticsLogger(Logger):
    """Record the metrics that a module logs, in the job of the process."""

    name = "ml_diagnostics"
    version = "0"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        current().log(metrics, step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        record_configs(params if isinstance(params, Mapping) else vars(params))
