"""The free space of file systems: exact, and no caller waits for one that does not answer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from ml_diagnostics_common.file_systems import FileSystemProbes, temporary_folder


def test_the_numbers_are_those_of_the_system(tmp_path: Path) -> None:
    (found,) = FileSystemProbes([str(tmp_path)]).answers(5)
    status = os.statvfs(tmp_path)
    assert found.path == str(tmp_path)
    assert found.total_bytes == status.f_blocks * status.f_frsize
    assert 0 < found.free_bytes <= found.total_bytes
    assert "device" not in found.to_json()


def test_a_missing_file_counts_as_its_folder_and_a_file_system_is_returned_once(tmp_path: Path) -> None:
    missing = str(tmp_path / "checkpoints" / "40" / "state")
    (found,) = FileSystemProbes([missing, str(tmp_path)]).answers(5)
    assert found.path == missing


def test_a_file_system_that_does_not_answer_keeps_nobody_and_is_not_asked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, asked = threading.Event(), []

    def never(path: str) -> os.stat_result:
        asked.append(path)
        released.wait()
        raise OSError

    monkeypatch.setattr(os, "stat", never)
    probes = FileSystemProbes([str(tmp_path)])
    probes.ask()
    assert probes.answers(0.01) == []
    released.set()
    assert len(asked) == 1


def test_the_folder_for_temporary_files_is_tmpdir() -> None:
    assert temporary_folder({"TMPDIR": "/scratch"}) == "/scratch"
    assert Path(temporary_folder({})).is_absolute()
