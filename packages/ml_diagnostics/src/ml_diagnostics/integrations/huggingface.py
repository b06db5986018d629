"""Hugging Face Transformers: a callback that records what `Trainer.train` does."""

from __future__ import annotations

from typing import Any

from ml_diagnostics_common.guard import guarded

from ml_diagnostics.integrations._training import Training, requires

with requires("transformers"):
    from transformers import TrainerCallback

__all__ = ["DiagnosticsCallback"]


class DiagnosticsCallback(TrainerCallback):
    """Record what `train` does, in the job of the process, or in one that starts and ends with it.

        Trainer(model, arguments, train_dataset=data, callbacks=[DiagnosticsCallback("digits")]).train()

    A step is one of the optimizer. The time between two is data loading, unless the trainer logs, evaluates or saves.
    """

    def __init__(self, name: str | None = None, **options: Any) -> None:
        """Take the arguments of `instrument`; none in a process that is instrumented."""
        self._training = Training(name, options)
        self._is_logging = False
        self._phase = ""
        """The evaluation or the save that the trainer makes between two steps, until it reports its end."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._phase = ""
        self._training.start(args.to_dict())

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.load()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.step(state.global_step + 1)  # The trainer counts steps from 1.

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._is_logging = control.should_log  # The trainer waits for the loss of the step then.
        if not self._is_logging:
            self._continue(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._is_logging = False
        self._continue(state, control)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._training.log(logs or {}, state.global_step)
        if self._is_logging:
            self._is_logging = False
            self._continue(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._phase == "evaluation":  # Else it is a call of `Trainer.evaluate`, after which nothing is loaded.
            self._continue(state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._phase == "checkpoint_save":
            self._continue(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end()

    def _continue(self, state: Any, control: Any) -> None:
        """Record the start of what the trainer does next, as its control shows."""
        self._phase = "evaluation" if control.should_evaluate else "checkpoint_save" if control.should_save else ""
        if self._phase:
            self._training.phase(self._phase, state.global_step)
        elif control.should_training_stop:
            self._training.pause()
        else:
            self._training.load()
