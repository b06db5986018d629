from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_diagnostics
import pytest

from .recorded_jobs import activities, metrics, seconds

HANDLER = "ml_diagnostics.integrations.torchtitan.register"


class Titan:
    """The calls of torchtitan's structured logger, with the fields of its records; they arrive after a delay.

    Time passes only in spans, so that their times are known.
    """

    def __init__(self, handlers: str) -> None:
        self.logger = logging.Logger("torchtitan.structured_logger", logging.INFO)
        self.step: int | None = None
        self.now = time.time()
        self.delayed: list[logging.LogRecord] = []
        for path in handlers.split(","):
            module, function = path.rsplit(".", 1)
            factory = getattr(importlib.import_module(module), function)
            factory(structured_logger=self.logger, rank=0, source="training", output_dir="outputs")

    def log(self, name: str, **fields: Any) -> None:
        extra = {"log_type_name": name, "event_name": None, "step": self.step, "value": None, **fields}
        record = self.logger.makeRecord(self.logger.name, logging.INFO, __file__, 0, name, (), None, extra=extra)
        record.created = self.now
        self.delayed.append(record)

    def flush(self) -> None:
        while self.delayed:
            self.logger.handle(self.delayed.pop(0))

    @contextmanager
    def span(self, name: str, duration_seconds: float = 0.0) -> Iterator[None]:
        self.log(f"{name}_start")
        start = self.now
        self.now += duration_seconds
        yield
        self.log(f"{name}_end", value=1e3 * (self.now - start))


def train(titan: Titan, steps: int) -> None:
    """Log what torchtitan's trainer logs."""
    with titan.span("torch_distributed_init"), titan.span("model_parallelism_init"):
        pass
    with titan.span("checkpoint_load"):
        pass
    titan.log("training_start")
    for titan.step in range(1, steps + 1):
        with titan.span("step"):
            for _ in range(2):  # batches of which the gradients are accumulated
                with titan.span("fetching_batch", 0.02):
                    pass
                with titan.span("fwd_bwd"):
                    pass
            with titan.span("optim"):
                pass
            titan.log("metric_value", event_name="global_valid_tokens", value=512 * titan.step)
            with titan.span("checkpoint_save", 0.05):
                pass
            with titan.span("eval"):
                pass
    titan.flush()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ML_DIAGNOSTICS_JOB", "llama")
    monkeypatch.setenv("ML_DIAGNOSTICS_DISABLE", "stacks,hangs,monitor")
    yield
    ml_diagnostics.current().__exit__(None, None, None)


def test_the_variable_alone_records_steps_loads_evaluations_saves_and_scalars(job: None) -> None:
    train(Titan(HANDLER), steps=2)
    assert [each for each in activities("llama") if each != "load"] == [
        *("start", "restore 0", "step 1", "save 1", "evaluation", "step 2", "save 2", "evaluation"),
    ]
    assert metrics()["global_valid_tokens"] == {1: 512, 2: 1024}


def test_times_are_those_of_the_spans_although_their_records_arrive_later(job: None) -> None:
    titan = Titan(HANDLER)
    train(titan, steps=3)
    spent = seconds("llama")
    assert spent["load"] == pytest.approx(3 * 2 * 0.02, abs=1e-4)
    assert spent["step 2"] == pytest.approx(0.02 + 0.05, abs=1e-4)  # It starts when its first batch is loaded.


def test_records_of_other_kinds_are_ignored(job: None) -> None:
    titan = Titan(HANDLER)
    titan.logger.info("text")
    titan.log("gc_collect_start")
    titan.log("checkpoint_save_end")
    titan.flush()
    assert activities("llama") == ["start"]
