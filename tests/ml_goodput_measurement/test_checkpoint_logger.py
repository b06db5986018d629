"""Logs of Orbax on saves and restores are recorded in the job's journal, and never disturb a checkpoint."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.file_systems import announced_checkpoint_folders
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.reader import JournalReader
from ml_goodput_measurement.goodput import CheckpointLogger, GoodputCalculator, GoodputRecorder
from ml_goodput_measurement.partition import Bucket

from ..waiting import LONG_SECONDS
from .histories import BASE, MemoryLog, orbax_save


@pytest.fixture
def diagnostics_folder() -> Path:
    return diagnostics_directory()


def recorder(**options: Any) -> GoodputRecorder:
    return GoodputRecorder("job", "goodput_job", True, **options)


def payloads(root: Path, log_id: str = "goodput_job") -> list[dict[str, Any]]:
    return [entry.payload for batch in JournalReader(log_id, root=root).read_new() for entry in batch]


@pytest.mark.parametrize("synchronous", [True, False])
def test_real_saves_and_restores_are_in_the_journal(
    tmp_path: Path, diagnostics_folder: Path, synchronous: bool
) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=not synchronous)
    before = datetime.datetime.now().timestamp()
    with ocp.CheckpointManager(
        tmp_path / "checkpoints", options=options, logger=CheckpointLogger(recorder())
    ) as manager:
        for step in (1, 2):
            assert manager.save(step, args=ocp.args.StandardSave({"weights": np.arange(8.0)}))
        manager.wait_until_finished()
        manager.restore(2, args=ocp.args.StandardRestore({"weights": np.zeros(8)}))
    after = datetime.datetime.now().timestamp()

    found = payloads(diagnostics_folder)
    assert [(entry["event_type"], entry["step"]) for entry in found] == [("save", 1), ("save", 2), ("restore", 2)]
    for entry in found:
        stem = "checkpoint_manager_blocking" if entry["event_type"] == "save" else "checkpoint_manager"
        assert before <= entry[f"{stem}_start_time"] <= after
        assert 0 < entry[f"{stem}_duration_secs"] <= after - before


def test_orbax_takes_it_for_a_logger_of_its_own_kind() -> None:
    orbax_logging = pytest.importorskip("orbax.checkpoint.logging")
    log = MemoryLog()
    logger = CheckpointLogger(recorder(cloud_logger=log))
    assert isinstance(logger, orbax_logging.AbstractLogger)

    # CompositeLogger drops, with a warning only, whatever is not an AbstractLogger.
    orbax_logging.CompositeLogger(logger).log_entry(orbax_save(3, 10, 12, "/checkpoints"))
    assert [payload["step"] for payload in log.payloads] == [3]


def test_a_job_is_recorded_from_its_name_alone(diagnostics_folder: Path) -> None:
    CheckpointLogger(job_name="job").log_entry(orbax_save(3, 10, 12, "/checkpoints"))
    CheckpointLogger(job_name="job", logger_name="my_log").log_entry(orbax_save(4, 10, 12, "/checkpoints"))
    assert [payload["step"] for payload in payloads(diagnostics_folder)] == [3]
    assert [payload["step"] for payload in payloads(diagnostics_folder, "my_log")] == [4]


def test_a_save_without_any_time_counts_back_from_when_it_was_logged(tmp_path: Path) -> None:
    """Orbax logs a save when it is over. The saved state holds the note too."""
    started = time.time() - 60
    job = recorder()
    job.record_job_start_time(datetime.datetime.fromtimestamp(started, datetime.timezone.utc))
    for step in range(6):
        job.record_step_start_time(step, datetime.datetime.fromtimestamp(started + 10 * step, datetime.timezone.utc))
    entry = orbax_save(5, 0, 4, "/checkpoints")
    before = time.time()
    CheckpointLogger(job).log_entry({key: None if "start_time" in key else value for key, value in entry.items()})
    logged = time.time()
    job.record_job_end_time()
    for _ in range(2):
        calculator = GoodputCalculator("job", "goodput_job", cache_dir=str(tmp_path))
        report = calculator.report()
        calculator.save_state()
        [piece] = [piece for piece in report.timeline if piece.bucket is Bucket.CHECKPOINT_SAVE]
        assert piece.end_ns - piece.start_ns == 4 * 10**9
        assert before - 0.1 < piece.end_ns / 1e9 < logged + 0.1  # The recorder's clock is not set with the machine's.
        assert any("without a start" in note for note in report.notes)


def test_the_disk_itself_is_asked_to_keep_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: asked.set())
    CheckpointLogger(recorder()).log_entry(orbax_save(3, 10, 12, "/checkpoints"))
    assert asked.wait(timeout=LONG_SECONDS)


def test_every_key_of_an_entry_is_kept_and_the_entry_left_alone(diagnostics_folder: Path) -> None:
    entry = orbax_save(3, 10, 12, "/checkpoints")
    CheckpointLogger(recorder()).log_entry(entry)
    assert payloads(diagnostics_folder) == [{"job_name": "job", **entry}]
    assert entry == orbax_save(3, 10, 12, "/checkpoints")


def test_the_job_is_ours_whatever_another_logger_put_into_the_entry(diagnostics_folder: Path) -> None:
    CheckpointLogger(recorder()).log_entry({"job_name": "checkpoint_job", **orbax_save(3, 10, 12, "/checkpoints")})
    assert [payload["job_name"] for payload in payloads(diagnostics_folder)] == ["job"]


def test_values_that_json_does_not_have_are_recorded_as_what_they_mean(diagnostics_folder: Path) -> None:
    entry = orbax_save(3, 10, 12, "/checkpoints") | {
        "step": np.int64(3),
        "directory": Path("/checkpoints"),
        "checkpoint_manager_blocking_start_time": datetime.datetime.fromtimestamp(BASE + 10, datetime.timezone.utc),
        "checkpoint_manager_blocking_duration_secs": np.float32(2.0),
        "preemption_received_at": None,
        "wait_for_prev_duration_secs": float("nan"),
    }
    CheckpointLogger(recorder()).log_entry(entry)
    assert payloads(diagnostics_folder) == [
        {"job_name": "job", **orbax_save(3, 10, 12, "/checkpoints"), "wait_for_prev_duration_secs": "NaN"}
    ]


def test_the_folder_of_a_save_is_known_to_those_that_measure_its_disk() -> None:
    CheckpointLogger(GoodputRecorder("job", "goodput_job")).log_entry(orbax_save(3, 10, 12, "/checkpoints"))
    assert announced_checkpoint_folders() == ["/checkpoints"]


@pytest.mark.parametrize("entry", [None, "saved", 7, [], {}, {"event_type": "delete", "step": 3}, {"event_type": []}])
def test_other_entries_than_saves_and_restores_are_skipped(
    diagnostics_folder: Path, entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    CheckpointLogger(recorder()).log_entry(entry, "more", severity="INFO")
    assert payloads(diagnostics_folder) == []
    assert not caplog.records


def test_a_disabled_recorder_records_no_checkpoints(diagnostics_folder: Path) -> None:
    CheckpointLogger(GoodputRecorder("job", "goodput_job")).log_entry(orbax_save(3, 10, 12, "/checkpoints"))
    assert payloads(diagnostics_folder) == []


@pytest.mark.usefixtures("in_production")
def test_a_save_goes_on_and_the_loss_is_counted_when_it_cannot_be_recorded() -> None:
    class BrokenLog(MemoryLog):
        def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
            raise RuntimeError("no such log")

    lost_before = LOSSES.total()
    CheckpointLogger(recorder(cloud_logger=BrokenLog())).log_entry(orbax_save(3, 10, 12, "/checkpoints"))
    assert LOSSES.total() == lost_before + 1


@pytest.mark.parametrize("names", [{}, {"logger_name": "my_log"}])
def test_a_logger_without_a_recorder_is_refused(names: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="either the job's recorder, or a job_name"):
        CheckpointLogger(**names)  # type: ignore[arg-type]


def test_a_logger_of_two_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="either the job's recorder, or a job_name"):
        CheckpointLogger(recorder(), job_name="job")


def test_it_needs_no_orbax_and_its_module_imports_none() -> None:
    program = """
import sys
from ml_goodput_measurement.goodput import CheckpointLogger
assert not any(name.partition(".")[0] in ("orbax", "jax", "numpy") for name in sys.modules)
sys.modules["orbax"] = None  # as if it were not installed
CheckpointLogger(job_name="job").log_entry({"event_type": "save", "step": 1})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
