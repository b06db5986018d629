"""Ray Train: a callback of the controller that records the metrics that workers report, and their failures."""

from __future__ import annotations

from typing import Any

from ml_diagnostics_common.guard import guarded

from ml_diagnostics.integrations._training import Training, requires

with requires("ray"):
    from ray.train import UserCallback

__all__ = ["DiagnosticsCallback"]

_PARTS_OF_WORKERS = {"goodput": False, "stacks": False, "hangs": False, "monitor": False}


class DiagnosticsCallback(UserCallback):
    """Record a run: the metrics that the first worker reports, and the exception that ends an attempt.

        TorchTrainer(train, run_config=RunConfig(callbacks=[DiagnosticsCallback("digits")])).fit()

    It runs in the controller. Where the time goes is seen in the workers: use
    `ml_diagnostics.instrument("digits", run=False)` in the function that they run.
    """

    def __init__(self, name: str, **options: Any) -> None:
        """Take the arguments of `instrument`."""
        self._arguments = name, {**_PARTS_OF_WORKERS, **options}
        self._training: Training | None = None
        self._reports = 0
        Training(*self._arguments)  # Checks them in the program that trains, not in the controller.

    def before_run(self, run_context: Any) -> None:
        self._started()

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self._started().log(metrics[0] if metrics else {}, self._reports)
        self._reports += 1

    @guarded
    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        training, self._training = self._started(), None
        if worker_exceptions:
            try:
                raise worker_exceptions[min(worker_exceptions)]
            except Exception as error:
                training.end(error)

    def _started(self) -> Training:
        """Return the training; a new one after a failed attempt, and in the process that the callback was sent to."""
        if self._training is None:
            self._training = Training(*self._arguments)
            self._training.start()
        return self._training
