from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_diagnostics

from .frameworks import installed
from .recorded_jobs import QUIET, activities, metrics

ocp = installed("orbax.checkpoint")

from ml_diagnostics.integrations.orbax import CheckpointLogger  # noqa: E402

STATE = {"weight": [1.0, 2.0]}


def manager(folder: Path) -> Any:
    return ocp.CheckpointManager(folder, logger=CheckpointLogger())


def test_saves_and_restores_are_recorded_with_their_steps_and_durations(tmp_path: Path) -> None:
    with ml_diagnostics.instrument("digits", **QUIET) as job:
        with manager(tmp_path) as checkpoints:
            for step, _ in job.steps("ab"):
                checkpoints.save(step, args=ocp.args.StandardSave(STATE))
        with manager(tmp_path) as checkpoints:
            checkpoints.restore(1, args=ocp.args.StandardRestore(STATE))
    seen = [each for each in activities("digits") if each != "load"]
    assert seen == ["start", "step 0", "save 0", "step 1", "save 1", "restore 1", "end"]
    assert sorted(metrics()["checkpoint_save_seconds"]) == [0, 1]
    assert 0 < metrics()["checkpoint_restore_seconds"][1] < 60


def test_a_manager_outside_of_a_job_saves_and_records_nothing(tmp_path: Path) -> None:
    with manager(tmp_path) as checkpoints:
        assert checkpoints.save(3, args=ocp.args.StandardSave(STATE))
        checkpoints.wait_until_finished()
        assert checkpoints.latest_step() == 3
    assert activities("digits") == []


def test_entries_of_other_kinds_and_shapes_are_ignored() -> None:
    with ml_diagnostics.instrument("digits", run=False, **QUIET):
        for entry in ("text", None, {}, {"event_type": ["save"]}, {"event_type": "delete", "step": 1}):
            CheckpointLogger().log_entry(entry)
    assert activities("digits") == ["start", "end"]
