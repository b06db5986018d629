"""The hooks for Tunix, called as `PeftTrainer.train` of google-tunix 0.1.7 calls them (tunix/sft/peft_trainer.py).

Where Tunix is installed, the classes are its own; else they have the signatures of that version. It loads a batch,
waits for the device, and then calls `on_train_step_start`; the metrics of a step follow later.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_diagnostics
import pytest

from .frameworks import hook
from .recorded_jobs import QUIET, activities, metrics, seconds


class TrainingHooks(abc.ABC):
    """The training hooks of Tunix, with their recorded signatures."""

    @abc.abstractmethod
    def on_train_start(self, train_ctx: Any) -> None: ...

    @abc.abstractmethod
    def on_train_end(self, train_ctx: Any) -> None: ...

    @abc.abstractmethod
    def on_train_step_start(self, train_ctx: Any) -> None: ...

    @abc.abstractmethod
    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: float) -> None: ...

    @abc.abstractmethod
    def on_eval_step_start(self, train_ctx: Any) -> None: ...

    @abc.abstractmethod
    def on_eval_step_end(self, train_ctx: Any, eval_loss: float) -> None: ...


class DataHooks(abc.ABC):
    """The data hooks of Tunix."""

    @abc.abstractmethod
    def load_next_train_batch(self, train_ctx: Any) -> Any: ...

    @abc.abstractmethod
    def load_next_eval_batch(self, train_ctx: Any) -> Any: ...


def train(
    hooks: Any,
    data: Any,
    backend: Any,
    *,
    accumulated: int = 1,
    eval_every: int = 100,
    max_steps: int | None = None,
    wait_seconds: float = 0.0,
    done: int = 0,
) -> None:
    """Call the hooks in the order in which Tunix's trainer does."""
    context = SimpleNamespace(train_steps=done, iter_steps=done, config=SimpleNamespace(max_steps=max_steps))
    hooks.on_train_start(context)
    while data.load_next_train_batch(context) is not None:
        if max_steps is not None and context.train_steps >= max_steps:
            break
        time.sleep(wait_seconds)  # for the device, so that not too many steps are in flight
        hooks.on_train_step_start(context)
        context.iter_steps += 1
        if context.iter_steps % accumulated == 0:
            context.train_steps += 1
            backend.log_scalar("/train/loss", 1.0 / context.train_steps, step=context.train_steps)
            backend.log_scalar("/jax/core/compile/backend_compile_duration", 1.7e9)
            hooks.on_train_step_end(context, context.train_steps, 0.5)
            if context.train_steps % eval_every == 0:
                while data.load_next_eval_batch(context) is not None:
                    hooks.on_eval_step_start(context)
                hooks.on_eval_step_end(context, 0.5)
    hooks.on_train_end(context)
    backend.close()


def test_training_is_a_job_with_its_steps_loads_evaluations_and_metrics() -> None:
    with hook("tunix", "tunix.sft.hooks", TrainingHooks=TrainingHooks, DataHooks=DataHooks) as module:
        hooks = module.DiagnosticsHooks("llama", **QUIET)
        data = module.DiagnosticsDataHooks(hooks, "abcd", "xy")
        train(hooks, data, module.DiagnosticsBackend(), eval_every=2)
    assert activities("llama") == [
        *("start", "load", "step 0", "load", "step 1", "evaluation", "load", "step 2", "load", "step 3"),
        *("evaluation", "load", "end"),
    ]
    assert sorted(metrics()["train/loss"]) == [1, 2, 3, 4]
    assert not [name for name in metrics() if "jax" in name]
    assert not ml_diagnostics.current().name


def test_the_wait_for_the_device_is_part_of_the_step_and_the_last_load_starts_none() -> None:
    with hook("tunix", "tunix.sft.hooks", TrainingHooks=TrainingHooks, DataHooks=DataHooks) as module:
        hooks = module.DiagnosticsHooks("llama", run=False, **QUIET)
        data = module.DiagnosticsDataHooks(hooks, "abcd")
        train(hooks, data, module.DiagnosticsBackend(), max_steps=2, wait_seconds=0.5)
    assert activities("llama") == ["start", "load", "step 0", "load", "step 1", "load", "end"]
    assert seconds("llama")["load"] < 0.5
    assert seconds("llama")["step 1"] >= 0.5


def test_a_load_that_raises_is_over() -> None:
    def batches() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError("no rows")

    with (
        hook("tunix", "tunix.sft.hooks", TrainingHooks=TrainingHooks, DataHooks=DataHooks) as module,
        ml_diagnostics.instrument("outer", run=False, **QUIET),
    ):
        hooks = module.DiagnosticsHooks()
        data = module.DiagnosticsDataHooks(hooks, batches())
        with pytest.raises(ZeroDivisionError, match="no rows"):
            train(hooks, data, module.DiagnosticsBackend())
        time.sleep(0.5)  # Other work of the program.
    assert 0 < seconds("outer")["load"] < 0.5


def test_a_step_that_accumulates_gradients_is_one_step() -> None:
    with hook("tunix", "tunix.sft.hooks", TrainingHooks=TrainingHooks, DataHooks=DataHooks) as module:
        hooks = module.DiagnosticsHooks("llama", run=False, **QUIET)
        train(hooks, module.DiagnosticsDataHooks(hooks, "abcd"), module.DiagnosticsBackend(), accumulated=2)
    assert activities("llama") == ["start", "load", "step 0", "load", "step 1", "load", "end"]


def test_a_trainer_that_resumes_goes_on_with_its_step_and_the_batches_that_it_has_not_seen() -> None:
    with hook("tunix", "tunix.sft.hooks", TrainingHooks=TrainingHooks, DataHooks=DataHooks) as module:
        hooks = module.DiagnosticsHooks("llama", run=False, **QUIET)
        data = module.DiagnosticsDataHooks(hooks, "abcd")
        context = SimpleNamespace(train_steps=2, iter_steps=2, config=SimpleNamespace(max_steps=None))
        assert data.load_next_train_batch(context) == "c"
        hooks = module.DiagnosticsHooks("llama", run=False, **QUIET)
        train(hooks, module.DiagnosticsDataHooks(hooks, "abcd"), module.DiagnosticsBackend(), done=2)
    assert [each for each in activities("llama") if "step" in each] == ["step 2", "step 3"]
