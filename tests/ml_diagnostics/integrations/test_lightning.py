from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_diagnostics
import pytest

from .frameworks import installed
from .recorded_jobs import QUIET, activities, metrics, only_run, seconds

torch: Any = installed("torch")
lightning: Any = installed("lightning.pytorch")

from ml_diagnostics.integrations.lightning import DiagnosticsCallback, DiagnosticsLogger  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Warnings of PyTorch and Lightning are not ours.


class Tiny(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, rate: float = 0.1, fails_at: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.linear = torch.nn.Linear(4, 1)
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == self.fails_at:
            raise ZeroDivisionError("no rows")
        loss = self.linear(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.linear(batch).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, count: int, load_seconds: float = 0.0) -> None:
        self.count, self.load_seconds = count, load_seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.load_seconds)
        return torch.ones(4)


def loader(count: int, load_seconds: float = 0.0) -> Any:
    return torch.utils.data.DataLoader(Rows(count, load_seconds), batch_size=1)


def trainer(folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    chosen = {
        "accelerator": "cpu",
        "default_root_dir": folder,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
        "logger": DiagnosticsLogger(),
        "max_epochs": 1,
        **arguments,
    }
    return lightning.Trainer(callbacks=list(callbacks), **chosen)


def test_fit_is_a_job_with_its_steps_loads_metrics_and_configs(tmp_path: Path) -> None:
    trainer(tmp_path, DiagnosticsCallback("tiny", **QUIET)).fit(Tiny(rate=0.25), loader(3))
    assert activities("tiny") == ["start", "load", "step 0", "load", "step 1", "load", "step 2", "load", "end"]
    assert sorted(metrics()["loss"]) == [0, 1, 2]
    run = only_run()
    assert run["runPhase"] == "COMPLETED"
    assert float(run["configs"]["userConfigs"]["rate"]) == 0.25
    assert not ml_diagnostics.current().name


def test_evaluations_and_saves_are_phases_and_the_loading_goes_on_after_them(tmp_path: Path) -> None:
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=2)
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    training = trainer(tmp_path, callback, saving, enable_checkpointing=True, num_sanity_val_steps=1)
    training.fit(Tiny(), loader(3), loader(1))
    assert activities("tiny") == [
        *("start", "evaluation", "load", "step 0", "load", "step 1", "load", "save 1", "load", "step 2"),
        *("load", "evaluation", "load", "end"),
    ]
    assert "save_checkpoint" not in vars(training)


def test_a_step_that_accumulates_gradients_is_one_step(tmp_path: Path) -> None:
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, accumulate_grad_batches=2).fit(Tiny(), loader(4))
    assert activities("tiny") == ["start", "load", "step 0", "load", "step 1", "load", "end"]


def test_slow_rows_are_data_loading_and_not_a_step(tmp_path: Path) -> None:
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback).fit(Tiny(), loader(4, load_seconds=0.1))
    spent = seconds("tiny")
    assert spent["load"] >= 0.38
    assert spent["step 3"] < 0.1


def test_training_that_resumes_goes_on_with_its_step(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.fit(Tiny(), loader(3))
    first.save_checkpoint(tmp_path / "last.ckpt")
    callback = DiagnosticsCallback("tiny", run=False, **QUIET)
    trainer(tmp_path, callback, max_epochs=2).fit(Tiny(), loader(3), ckpt_path=tmp_path / "last.ckpt")
    assert [each for each in activities("tiny") if "step" in each] == ["step 3", "step 4", "step 5"]


def test_an_exception_ends_the_job_as_failed_and_passes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="no rows"):
        trainer(tmp_path, DiagnosticsCallback("tiny", **QUIET)).fit(Tiny(fails_at=1), loader(3))
    assert activities("tiny")[-2:] == ["step 1", "end ZeroDivisionError"]
    assert only_run()["runPhase"] == "FAILED"
    assert not ml_diagnostics.current().name


def test_an_instrumented_process_keeps_its_job_and_an_evaluation_after_the_training_loads_nothing(
    tmp_path: Path,
) -> None:
    with ml_diagnostics.instrument("outer", run=False, **QUIET):
        training = trainer(tmp_path, DiagnosticsCallback())
        training.fit(Tiny(), loader(2))
        training.validate(Tiny(), loader(1), verbose=False)
    assert activities("outer") == ["start", "load", "step 0", "load", "step 1", "load", "evaluation", "end"]


PROGRAM = """
import lightning.pytorch as lightning, torch
from ml_diagnostics.integrations.lightning import DiagnosticsCallback, DiagnosticsLogger

class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.linear(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

callback, logger = DiagnosticsCallback("tiny", directory="out"), DiagnosticsLogger()
options = {"enable_checkpointing": False, "enable_progress_bar": False, "log_every_n_steps": 1, "max_epochs": 1}
training = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback], logger=logger, **options
)
training.fit(Tiny(), torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=1))
"""


def test_of_the_processes_that_lightning_starts_only_the_first_records(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "ML_DIAGNOSTICS_RAISE": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert activities("tiny") == ["start", "load", "step 0", "load", "step 1", "load", "end"]
    (attempt,) = only_run()["attempts"]
    assert sorted(process["process_index"] for process in attempt["processes"]) == [0, 1]
