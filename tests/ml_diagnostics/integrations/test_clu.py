from __future__ import annotations

from typing import Any

import ml_diagnostics
import pytest

from .frameworks import installed
from .recorded_jobs import QUIET, metrics, only_run

metric_writers: Any = installed("clu.metric_writers")

import jax.numpy as jnp  # noqa: E402
from ml_diagnostics.integrations.clu import DiagnosticsWriter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Warnings of CLU and JAX are not ours.


def test_scalars_are_metrics_with_their_step_and_hyperparameters_are_configs() -> None:
    with ml_diagnostics.instrument("digits", **QUIET):
        writer = DiagnosticsWriter()
        writer.write_hparams({"rate": 0.25})
        writer.write_scalars(3, {"loss": jnp.float32(0.5), "accuracy": 1})
        writer.flush()
        writer.close()
    assert metrics()["loss"] == {3: 0.5}
    assert metrics()["accuracy"] == {3: 1}
    assert float(only_run()["configs"]["userConfigs"]["rate"]) == 0.25


def test_it_works_beside_other_writers_in_a_thread() -> None:
    with ml_diagnostics.instrument("digits", **QUIET):
        writers = [metric_writers.LoggingWriter(), DiagnosticsWriter()]
        writer = metric_writers.AsyncMultiWriter(writers)
        with metric_writers.ensure_flushes(writer):
            for step in range(20):
                writer.write_scalars(step, {"loss": jnp.float32(step)})
    assert metrics()["loss"] == {step: step for step in range(20)}


def test_values_that_are_not_scalars_are_ignored() -> None:
    with ml_diagnostics.instrument("digits", **QUIET):
        writer = DiagnosticsWriter()
        writer.write_images(0, {"image": jnp.ones((1, 2, 2, 3))})
        writer.write_texts(0, {"text": "words"})
        writer.write_histograms(0, {"weights": jnp.ones(3)}, num_buckets={"weights": 2})
        writer.write_summaries(0, {"summary": jnp.ones(3)})
        writer.write_audios(0, {"audio": jnp.ones((1, 2, 1))}, sample_rate=44_100)
        writer.write_videos(0, {"video": jnp.ones((1, 2, 2, 2, 3))})
    assert not {"image", "weights", "summary", "audio", "video"} & set(metrics())


def test_a_writer_outside_of_a_job_records_nothing() -> None:
    DiagnosticsWriter().write_scalars(0, {"loss": 1.0})
    assert metrics() == {}
