"""The status files of fast-fail: those of processes that run stay, however old, and those of dead ones go."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._fast_fail.status import FastFailStatus, read_status, write_status
from ml_diagnostics_common.processes import start_mark

DAY = 86_400.0


def make_older(folder: Path, seconds: float) -> None:
    for path in (folder / "state" / "fast_fail").iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def test_a_process_that_joins_removes_the_old_files_of_dead_processes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    own = start_mark(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as child:
        child_start = start_mark(child.pid)
        write_status(child.pid, child_start, FastFailStatus())
        write_status(os.getpid(), own, FastFailStatus())
        make_older(tmp_path, 3 * DAY)
        write_status(child.pid, child_start, FastFailStatus())
        assert read_status(os.getpid(), own) is not None
        child.kill()
    make_older(tmp_path, 3 * DAY)
    write_status(os.getpid(), own, FastFailStatus())
    assert read_status(child.pid, child_start) is None


def test_the_old_file_of_another_process_with_the_same_number_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    write_status(os.getpid(), "1", FastFailStatus())
    make_older(tmp_path, 3 * DAY)
    write_status(os.getpid(), start_mark(os.getpid()), FastFailStatus())
    assert read_status(os.getpid(), "1") is None
