"""CheckpointBadputCalculator: statistics from Orbax's entries, also malformed ones, of the journal or a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_goodput_measurement.checkpoint_badput_calculator import (
    OPERATION_TYPE_LOCAL,
    OPERATION_TYPE_PERSISTENT,
    OPERATION_TYPE_PERSISTENT_AND_LOCAL,
    CheckpointBadputCalculator,
    CheckpointLoggerOptions,
    RestoreCheckpointManagerVerticalStepStats,
    SaveCheckpointManagerVerticalStepStats,
    main,
)
from ml_goodput_measurement.goodput import CheckpointLogger, GoodputRecorder

from .histories import BASE, JOB, orbax_save
from .loaded_modules import loaded_by

OURS = CheckpointLoggerOptions(job_name=JOB, logger_name="goodput_job")


def save(step: int, seconds: float, directory: str = "gs://bucket/run", **more: Any) -> dict[str, Any]:
    return {"job_name": JOB, **orbax_save(step, 10, 10 + seconds, directory), **more}


def restore(step: int, seconds: float, restoring: float, broadcast: float | None = None) -> dict[str, Any]:
    entry = {
        "job_name": JOB,
        "event_type": "restore",
        "step": step,
        "directory": "gs://bucket/run",
        "checkpointer_start_time": BASE,
        "checkpointer_duration_secs": restoring,
        "checkpoint_manager_start_time": BASE,
        "checkpoint_manager_duration_secs": seconds,
    }
    if broadcast is not None:
        entry |= {"event_type": "emergency_restore", "broadcast_start_time": BASE, "directory": "/ram"}
        entry |= {"is_restoring_slice": True, "in_primary_slice": True, "broadcast_duration_secs": broadcast}
    return entry


def calculator_of(*entries: Any) -> CheckpointBadputCalculator:
    calculator = CheckpointBadputCalculator(CheckpointLoggerOptions(use_goodput_logger=True))
    calculator.entries = entries
    return calculator


def five(stats: Any, name: str) -> list[float]:
    kinds = ("total", "average", "minimum", "maximum", "standard_deviation")
    return [asdict(stats)[f"{kind}_{name}_time"] for kind in kinds]


SAVES = [
    save(1, 2.0, checkpointer_blocking_duration_secs=1.0, wait_for_prev_duration_secs=0.5),
    save(1, 4.0, checkpointer_blocking_duration_secs=2.0, wait_for_prev_duration_secs=0.5),  # Another host.
    save(2, 10.0, checkpointer_blocking_duration_secs=5.0, wait_for_prev_duration_secs=0.5),
    save(2, 7.0, "/local", checkpointer_blocking_duration_secs=5.0, wait_for_prev_duration_secs=0.5),
]


# The public library computes the same numbers.
@pytest.mark.parametrize(
    ("operation_type", "whole", "checkpointer"),
    [
        ("persistent", [13.0, 6.5, 3.0, 10.0, 4.949747468305833], [6.5, 3.25, 1.5, 5.0, 2.4748737341529163]),
        ("local", [7.0, 7.0, 7.0, 7.0, 0.0], [5.0, 5.0, 5.0, 5.0, 0.0]),
        (
            "persistent_and_local",
            [20.0, 6.666666666666667, 3.0, 10.0, 3.511884584286246],
            [11.5, 3.8333333333333335, 1.5, 5.0, 2.0207259421636903],
        ),
    ],
)
def test_a_step_counts_with_the_mean_of_its_hosts(
    operation_type: str, whole: list[float], checkpointer: list[float]
) -> None:
    stats = calculator_of(*SAVES).calculate_save_operation_checkpoint_manager_blocking_time(operation_type)
    assert five(stats, "checkpoint_manager_blocking") == pytest.approx(whole)
    assert five(stats, "checkpointer_blocking") == pytest.approx(checkpointer)
    saves = round(whole[0] / whole[1])
    assert five(stats, "wait_for_prev") == pytest.approx([0.5 * saves, 0.5, 0.5, 0.5, 0.0])
    assert five(stats, "get_old_steps") == [0.0] * 5


@pytest.mark.parametrize(
    ("operation_type", "whole", "restoring", "broadcast"),
    [
        ("persistent", [4.0, 4.0, 4.0, 4.0, 0.0], [2.0, 2.0, 2.0, 2.0, 0.0], [0.0] * 5),
        ("local", [8.0, 8.0, 8.0, 8.0, 0.0], [2.0, 2.0, 2.0, 2.0, 0.0], [4.0, 4.0, 4.0, 4.0, 0.0]),
        (
            "persistent_and_local",
            [12.0, 6.0, 4.0, 8.0, 2.8284271247461903],
            [4.0, 2.0, 2.0, 2.0, 0.0],
            [4.0, 4.0, 4.0, 4.0, 0.0],
        ),
    ],
)
def test_restores_count_like_saves(
    operation_type: str, whole: list[float], restoring: list[float], broadcast: list[float]
) -> None:
    entries = [restore(1, 3.0, 2.0), restore(1, 5.0, 2.0), restore(2, 7.0, 2.0, 3.0), restore(2, 9.0, 2.0, 5.0)]
    stats = calculator_of(*entries).calculate_restore_operation_checkpoint_manager_blocking_time(operation_type)
    assert five(stats, "checkpoint_manager") == pytest.approx(whole)
    assert five(stats, "restore") == pytest.approx(restoring)
    assert five(stats, "broadcast") == pytest.approx(broadcast)


def test_without_saves_and_restores_all_statistics_are_zero() -> None:
    calculator = calculator_of({"job_name": JOB, "step_count": 1, "step_start_time": BASE})
    saves = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    restores = calculator.calculate_restore_operation_checkpoint_manager_blocking_time()
    assert saves == SaveCheckpointManagerVerticalStepStats()
    assert restores == RestoreCheckpointManagerVerticalStepStats()


@pytest.mark.parametrize(
    ("entry", "valid"),
    [
        (save(1, 2.0), {("save", "persistent"), ("save", "persistent_and_local")}),
        (save(1, 2.0, "/disk"), {("save", "local"), ("save", "persistent_and_local")}),
        (restore(1, 2.0, 1.0), {("restore", "persistent"), ("restore", "persistent_and_local")}),
        (restore(1, 2.0, 1.0, 1.0), {("restore", "local"), ("restore", "persistent_and_local")}),
        ({}, set()),
        ({"event_type": None}, set()),
        ({"step_count": 3}, set()),
    ],
)
def test_the_operation_of_an_entry(entry: dict[str, Any], valid: set[tuple[str, str]]) -> None:
    calculator = calculator_of()
    checks = {"save": calculator.is_valid_save_stats, "restore": calculator.is_valid_restore_stats}
    tiers = (OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT, OPERATION_TYPE_PERSISTENT_AND_LOCAL)
    assert {(name, tier) for name, check in checks.items() for tier in tiers if check(entry, tier)} == valid
    for name, check in checks.items():
        assert check(entry) == ((name, "persistent_and_local") in valid)


def test_a_malformed_entry_is_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    key = "checkpoint_manager_blocking_duration_secs"
    malformed = [save(9, 1.0, **{key: value}) for value in (None, "2", float("nan"), float("inf"), -1.0, True, [])]  # type: ignore[arg-type, var-annotated]
    malformed += [save(9, 1.0) | {"step": value} for value in (None, "7", float("nan"))]
    calculator = calculator_of(*malformed, None, 7, "save", *SAVES, {"event_type": "save"})
    stats = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    assert stats.total_checkpoint_manager_blocking_time == pytest.approx(20.0)
    assert calculator.skipped == {"no step or no duration": 11, "not a mapping": 3}
    assert "skipped entries" in caplog.text


def test_phases_that_were_not_measured_count_as_zero() -> None:
    entry = save(1, 2.0, directory=None, wait_for_prev_duration_secs=None)  # type: ignore[arg-type]
    del entry["get_old_steps_duration_secs"]
    calculator = calculator_of(entry)
    stats = calculator.calculate_save_operation_checkpoint_manager_blocking_time("local")
    assert five(stats, "checkpoint_manager_blocking") == [2.0, 2.0, 2.0, 2.0, 0.0]
    assert five(stats, "wait_for_prev") == five(stats, "get_old_steps") == [0.0] * 5
    assert not calculator.skipped


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected operation_type to be one of local, .*, got 'both'"):
        calculator_of().calculate_save_operation_checkpoint_manager_blocking_time("both")
    with pytest.raises(ConfigurationError, match="operation_type"):
        calculator_of().calculate_restore_operation_checkpoint_manager_blocking_time("both")
    with pytest.raises(ConfigurationError, match="job_name"):
        CheckpointBadputCalculator(CheckpointLoggerOptions(job_name=""))


# --- Where entries are read -------------------------------------------------------------------------------


def test_real_checkpoints_of_orbax_are_measured(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    import numpy as np

    recorder = GoodputRecorder(JOB, "goodput_job", True)
    with ocp.CheckpointManager(tmp_path / "checkpoints", logger=CheckpointLogger(recorder)) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"weights": np.arange(8.0)}))
        manager.wait_until_finished()
        manager.restore(2, args=ocp.args.StandardRestore({"weights": np.zeros(8)}))

    calculator = CheckpointBadputCalculator(OURS)
    saves = calculator.calculate_save_operation_checkpoint_manager_blocking_time("local")
    assert len(calculator.entries) == 3
    assert 0 < saves.minimum_checkpoint_manager_blocking_time <= saves.maximum_checkpoint_manager_blocking_time
    assert saves.total_checkpoint_manager_blocking_time == pytest.approx(
        2 * saves.average_checkpoint_manager_blocking_time
    )
    assert 0 < saves.total_checkpointer_blocking_time <= saves.total_checkpoint_manager_blocking_time
    restores = calculator.calculate_restore_operation_checkpoint_manager_blocking_time()
    assert 0 < restores.total_restore_time <= restores.total_checkpoint_manager_time
    assert not calculator.skipped


def test_a_second_calculation_includes_new_entries() -> None:
    recorder = GoodputRecorder(JOB, "goodput_job", True)
    logger, calculator = CheckpointLogger(recorder), CheckpointBadputCalculator(OURS)
    for count in (1, 2, 3):
        logger.log_entry(save(count, 2.0))
        recorder.record_step_start_time(count)
        stats = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
        assert stats.total_checkpoint_manager_blocking_time == pytest.approx(2.0 * count)
    assert [entry["step"] for entry in calculator.read_entries()] == [1, 2, 3]


def test_entries_that_you_set_are_not_replaced_by_the_log() -> None:
    CheckpointLogger(GoodputRecorder(JOB, "goodput_job", True)).log_entry(save(1, 2.0))
    calculator = CheckpointBadputCalculator(OURS)
    calculator.entries = [save(1, 5.0)]
    stats = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    assert stats.total_checkpoint_manager_blocking_time == pytest.approx(5.0)


@pytest.fixture
def server() -> Iterator[CloudLoggingServer]:
    with CloudLoggingServer() as server:
        yield server


def test_a_client_is_read_without_a_time_limit(server: CloudLoggingServer) -> None:
    import google.cloud.logging
    from google.auth.credentials import AnonymousCredentials

    client = google.cloud.logging.Client(
        project=server.project,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": server.rest_url},
        _use_grpc=False,
    )
    name = 'a "job"'
    for entry in (save(1, 2.0), restore(1, 3.0, 2.0), {"step_count": 1, "step_start_time": BASE}):
        client.logger("checkpoint_logger").log_struct({**entry, "job_name": name}, severity="INFO")
        client.logger("checkpoint_logger").log_struct({**entry, "job_name": "another"}, severity="INFO")
    calculator = CheckpointBadputCalculator(CheckpointLoggerOptions(job_name=name, client=client))
    saves = calculator.calculate_save_operation_checkpoint_manager_blocking_time()
    restores = calculator.calculate_restore_operation_checkpoint_manager_blocking_time()
    assert (saves.total_checkpoint_manager_blocking_time, restores.total_checkpoint_manager_time) == (2.0, 3.0)
    assert len(calculator.entries) == 2
    client._http.close()


def test_the_command_prints_the_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    CheckpointLogger(GoodputRecorder(JOB, "goodput_job", True)).log_entry(save(1, 2.0))
    assert main(["--job_name", JOB, "--logger_name", "goodput_job", "--operation_type", "persistent"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "save total_checkpoint_manager_blocking_time: 2.000000" in printed
    assert "restore total_restore_time: 0.000000" in printed
    assert len(printed) == 20 + 15


def test_importing_it_loads_no_google() -> None:
    loaded = loaded_by("import ml_goodput_measurement.checkpoint_badput_calculator")
    assert "ml_goodput_measurement.checkpoint_badput_calculator" in loaded
    assert not {"google", "numpy", "msgspec", "ml_diagnostics_common.log_source"} & loaded
