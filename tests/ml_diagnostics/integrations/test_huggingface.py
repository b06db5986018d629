from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import ml_diagnostics
import pytest
from ml_goodput_measurement.report import report

from .frameworks import installed
from .recorded_jobs import QUIET, activities, metrics, only_run, seconds

torch = installed("torch")
transformers = installed("transformers")

from ml_diagnostics.integrations.huggingface import DiagnosticsCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Warnings of PyTorch and Transformers are not ours.


class Rows(torch.utils.data.Dataset):  # type: ignore[name-defined,misc]
    def __init__(self, count: int, load_seconds: float = 0.0) -> None:
        self.count, self.load_seconds = count, load_seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.load_seconds)
        return {"x": torch.ones(4), "labels": torch.ones(1)}


class Tiny(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.calls, self.fails_at = 0, fails_at

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise ZeroDivisionError("no rows")
        logits = self.linear(x)
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


def trainer(folder: Path, *callbacks: Any, model: Any = None, rows: Rows | None = None, **arguments: Any) -> Any:
    chosen = {
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **arguments,
    }
    return transformers.Trainer(
        model or Tiny(),
        transformers.TrainingArguments(str(folder), **chosen),
        train_dataset=rows or Rows(6),
        eval_dataset=Rows(2),
        callbacks=list(callbacks),
    )


def test_train_is_a_job_with_its_steps_loads_metrics_and_configs(tmp_path: Path) -> None:
    trainer(tmp_path, DiagnosticsCallback("tiny", **QUIET), logging_steps=1).train()
    assert activities("tiny") == ["start", "load", "step 1", "load", "step 2", "load", "step 3", "end"]
    assert sorted(metrics()["loss"]) == [1, 2, 3]
    assert {"grad_norm", "learning_rate", "train_loss"} <= set(metrics())
    run = only_run()
    assert run["runPhase"] == "COMPLETED"
    assert run["configs"]["userConfigs"]["max_steps"] in (3, "3")
    assert not ml_diagnostics.current().name


@pytest.mark.parametrize("logging_steps", [1, 100])
def test_evaluations_and_saves_are_phases(tmp_path: Path, logging_steps: int) -> None:
    strategy: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, logging_steps=logging_steps, **strategy).train()
    assert activities("tiny") == [
        *("start", "load", "step 1", "load", "step 2", "evaluation", "save 2"),
        *("load", "step 3", "evaluation", "save 3", "end"),
    ]


def test_epochs_that_evaluate_and_save_are_recorded(tmp_path: Path) -> None:
    strategy: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, max_steps=-1, num_train_epochs=2, rows=Rows(2), **strategy).train()
    assert activities("tiny") == [
        *("start", "load", "step 1", "load", "evaluation", "save 1"),
        *("load", "step 2", "evaluation", "save 2", "end"),
    ]


def test_a_step_that_accumulates_gradients_is_one_step(tmp_path: Path) -> None:
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, max_steps=2, gradient_accumulation_steps=3, rows=Rows(12)).train()
    assert activities("tiny") == ["start", "load", "step 1", "load", "step 2", "end"]


def test_slow_rows_are_data_loading_and_not_a_step(tmp_path: Path) -> None:
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, rows=Rows(6, load_seconds=0.05)).train()
    spent = seconds("tiny")
    assert spent["load"] >= 0.28
    assert spent["step 3"] < 0.1


def test_training_that_resumes_goes_on_with_its_step(tmp_path: Path) -> None:
    trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, max_steps=4).train(resume_from_checkpoint=True)
    assert [each for each in activities("tiny") if "step" in each] == ["step 4"]


def test_an_instrumented_process_keeps_its_job(tmp_path: Path) -> None:
    with ml_diagnostics.instrument("outer", run=False, **QUIET) as job:
        training = trainer(tmp_path, DiagnosticsCallback())
        training.train()
        with job.phase("evaluation"):
            training.evaluate()
    assert activities("outer")[-3:] == ["step 3", "evaluation", "end"]


def test_after_an_evaluation_without_a_training_nothing_is_loaded(tmp_path: Path) -> None:
    with ml_diagnostics.instrument("outer", run=False, **QUIET):
        trainer(tmp_path, DiagnosticsCallback()).evaluate()
    assert activities("outer") == ["start", "end"]


def test_a_program_that_fails_records_its_failure_when_it_exits(tmp_path: Path) -> None:
    test_module = Path(__file__).read_text(encoding="utf-8")
    classes = test_module[test_module.index("class Rows") : test_module.index("def test_")]
    program = f"""
import time
from pathlib import Path
from typing import Any
import torch, transformers
from ml_diagnostics.integrations.huggingface import DiagnosticsCallback

{classes}
trainer(Path("out"), DiagnosticsCallback("tiny", directory="out"), model=Tiny(fails_at=2)).train()
"""
    (tmp_path / "train.py").write_text("from __future__ import annotations\n" + textwrap.dedent(program))
    environment = {**os.environ, "ML_DIAGNOSTICS_RAISE": "0"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1, done.stderr
    assert "ZeroDivisionError: no rows" in done.stderr
    assert activities("tiny")[-2:] == ["step 2", "process failed ZeroDivisionError"]
    assert only_run()["runPhase"] == "FAILED"


def test_the_time_after_a_training_that_fails_within_a_users_job_belongs_to_no_activity_of_it(tmp_path: Path) -> None:
    class BrokenRows(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            raise ZeroDivisionError("no rows")

    callback = DiagnosticsCallback()
    with ml_diagnostics.instrument("tiny", **QUIET):
        with pytest.raises(ZeroDivisionError):
            trainer(tmp_path, callback, rows=BrokenRows(6)).train()
        time.sleep(0.5)
        trainer(tmp_path, callback).train()
    assert activities("tiny")[-1] == "end"
    loaded = report("tiny").as_dict()["buckets"]["DATA_LOADING_SYNC"]
    assert 0 < loaded["seconds"] < 0.5
