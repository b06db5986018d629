from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_diagnostics
import pytest
from ml_diagnostics_common.exceptions import ConfigurationError

from .frameworks import installed
from .recorded_jobs import QUIET, activities, metrics, only_run, seconds

keras = installed("keras")

import numpy as np  # noqa: E402
from ml_diagnostics.integrations.keras import DiagnosticsCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Warnings of Keras and JAX are not ours.

DATA = (np.ones((8, 4), "float32"), np.ones((8, 1), "float32"))


def model() -> Any:
    built = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    built.compile("sgd", "mse")
    return built


def fit(built: Any, *callbacks: Any, **arguments: Any) -> None:
    built.fit(*arguments.pop("data", DATA), batch_size=4, verbose=0, callbacks=list(callbacks), **arguments)


def batches(seconds: float = 0.0) -> Iterator[tuple[Any, Any]]:
    while True:
        time.sleep(seconds)
        yield DATA[0][:4], DATA[1][:4]


def test_fit_is_a_job_with_its_steps_loads_metrics_and_configs() -> None:
    fit(model(), DiagnosticsCallback("digits", **QUIET), epochs=2)
    steps = ["load", "step 0", "load", "step 1"]
    more = ["load", "step 2", "load", "step 3"]
    assert activities("digits") == ["start", *steps, *more, "end"]
    assert sorted(metrics()["loss"]) == [0, 1, 2, 3]
    run = only_run()
    assert run["runPhase"] == "COMPLETED"
    assert run["configs"]["userConfigs"]["epochs"] in (2, "2")
    assert not ml_diagnostics.current().name


def test_evaluations_saves_and_restores_are_phases(tmp_path: Path) -> None:
    built = model()
    weights = str(tmp_path / "model.weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(weights, save_weights_only=True)
    callback = DiagnosticsCallback("digits", run=False, **QUIET)
    fit(built, callback, checkpoint, validation_data=DATA)
    assert activities("digits") == ["start", "load", "step 0", "load", "step 1", "evaluation", "save 1", "end"]
    backup = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
    fit(built, callback, backup)
    fit(model(), callback, backup)
    assert activities("digits")[-3:] == ["start", "restore 0", "end"]


def test_a_save_that_fails_is_not_recorded_as_a_save(tmp_path: Path) -> None:
    class Saving(keras.callbacks.Callback):  # type: ignore[name-defined,misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with contextlib.suppress(OSError):
                self.model.save_weights(tmp_path / "missing" / "model.weights.h5")

    fit(model(), DiagnosticsCallback("digits", run=False, **QUIET), Saving())
    assert activities("digits")[-3:] == ["step 1", "failed_checkpoint_save", "end"]


def test_validation_metrics_have_the_last_step_of_the_epoch() -> None:
    fit(model(), DiagnosticsCallback("digits", **QUIET), validation_data=DATA, epochs=2)
    assert sorted(metrics()["val_loss"]) == [1, 3]


def test_a_slow_pipeline_is_data_loading_and_not_a_step() -> None:
    callback = DiagnosticsCallback("digits", run=False, **QUIET)
    model().fit(batches(0.1), steps_per_epoch=10, verbose=0, callbacks=[callback])
    spent = seconds("digits")
    assert spent["load"] >= 0.75  # Keras loads the first two before the training, to build the model.
    assert spent["step 5"] < 0.1


def test_an_instrumented_process_keeps_its_job_which_goes_on_after_fit() -> None:
    with ml_diagnostics.instrument("outer", run=False, **QUIET) as job:
        built = model()
        callback = DiagnosticsCallback()
        fit(built, callback)
        fit(built, callback, epochs=2)
        assert ml_diagnostics.current() is job
    assert [each for each in activities("outer") if each != "load"] == [
        *("start", "step 0", "step 1", "step 2", "step 3", "step 4", "step 5", "end"),
    ]


def test_a_model_that_continues_goes_on_with_the_step_of_its_optimizer(tmp_path: Path) -> None:
    built = model()
    fit(built, epochs=3)
    fit(built, DiagnosticsCallback("digits", run=False, **QUIET))
    assert [each for each in activities("digits") if "step" in each] == ["step 6", "step 7"]


def test_several_steps_in_one_execution_are_steps() -> None:
    built = model()
    built.compile("sgd", "mse", steps_per_execution=2)
    fit(built, DiagnosticsCallback("digits", run=False, **QUIET), epochs=2)
    assert [each for each in activities("digits") if "step" in each] == ["step 0", "step 1", "step 2", "step 3"]


def test_an_exception_in_a_step_or_in_the_data_ends_the_job_as_failed_and_passes() -> None:
    def broken() -> Iterator[tuple[Any, Any]]:
        yield from (next(batches()) for _ in range(3))
        raise OSError("the file system is gone")

    built = model()
    with pytest.raises(OSError, match="gone"):
        built.fit(broken(), steps_per_epoch=9, verbose=0, callbacks=[DiagnosticsCallback("digits", **QUIET)])
    assert activities("digits")[-1] == "end OSError"
    assert only_run()["runPhase"] == "FAILED"
    assert not ml_diagnostics.current().name
    fit(built, DiagnosticsCallback("again", run=False, **QUIET))
    assert [each for each in activities("again") if each != "load"] == ["start", "step 3", "step 4", "end"]
    assert activities("digits")[-1] == "end OSError"


def test_data_that_ends_early_is_not_an_exception() -> None:
    def three() -> Iterator[tuple[Any, Any]]:
        return (next(batches()) for _ in range(3))

    with pytest.warns(UserWarning, match="ran out of data"):
        model().fit(
            three(), steps_per_epoch=9, verbose=0, callbacks=[DiagnosticsCallback("digits", run=False, **QUIET)]
        )
    assert activities("digits") == ["start", "load", "step 0", "load", "step 1", "load", "step 2", "load", "end"]


def test_another_callback_that_fails_leaves_a_job_that_the_next_fit_ends() -> None:
    class Failing(keras.callbacks.Callback):  # type: ignore[name-defined,misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise ZeroDivisionError

    built = model()
    callback = DiagnosticsCallback("digits", run=False, **QUIET)
    with pytest.raises(ZeroDivisionError):
        fit(built, callback, Failing())
    fit(built, callback)
    seen = [each for each in activities("digits") if each != "load"]
    assert seen == ["start", "step 0", "step 1", "end RuntimeError", "start", "step 2", "step 3", "end"]


def test_the_model_has_its_own_functions_after_fit(tmp_path: Path) -> None:
    built = model()
    fit(built, DiagnosticsCallback("digits", run=False, **QUIET))
    assert {"save", "save_weights", "load_weights"} & set(vars(built)) == set()
    fit(built)
    built.save(tmp_path / "model.keras")
    assert [each for each in activities("digits") if "step" in each] == ["step 0", "step 1"]


def test_no_step_waits_for_the_device_to_compute_its_metrics() -> None:
    from keras.src.callbacks.callback_list import CallbackList

    assert CallbackList([DiagnosticsCallback("digits")])._async_train


def test_a_callback_without_a_job_is_an_error_that_shows_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="pass the name of a job, such as 'digits'"):
        fit(model(), DiagnosticsCallback())
    with pytest.raises(ConfigurationError, match="expected name"):
        DiagnosticsCallback("")


def test_a_program_that_fails_elsewhere_records_its_failure_when_it_exits(tmp_path: Path) -> None:
    program = """
        import keras, numpy
        from ml_diagnostics.integrations.keras import DiagnosticsCallback

        class Failing(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                raise ZeroDivisionError("no rows")

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = numpy.ones((8, 4)), numpy.ones((8, 1))
        model.fit(*data, verbose=0, callbacks=[DiagnosticsCallback("digits", directory="out"), Failing()])
    """
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_RAISE": "0"}
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "ZeroDivisionError: no rows" in done.stderr
    assert activities("digits")[-1] == "process failed ZeroDivisionError"
    assert only_run()["runPhase"] == "FAILED"
