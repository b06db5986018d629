"""A process of which no companion recorded anything has the stacks of its trace file, if that is on this machine."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.environment import identity
from ml_diagnostics_console._facts.facts import ProcessFacts
from ml_diagnostics_console._facts.trace_stacks import with_trace_stacks

from tests.console.made_facts import attempt, process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="diagnose() writes no trace files on Windows")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cloud_tpu_diagnostics._collect.trace_file.FOLDER", tmp_path)
    return tmp_path


def dump(folder: Path, pid: int) -> Path:
    """Write the stacks of this test as those of a process of this host."""
    host = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in os.uname().nodename[:64]) or "host"
    path = folder / f"stack_trace_2026_11_27_10_00_00_{host}_{pid}.txt"
    with path.open("w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file)
    return path


def silent(pid: int, **fields: Any) -> ProcessFacts:
    """Return a process that only its run knows, as of now."""
    now_ns = time.time_ns()
    known = {"host": identity().host, "pid": pid, "started_ns": now_ns - 10**10, "last_event_ns": now_ns, **fields}
    return process(0, **known)


def stacks(known: ProcessFacts) -> list[str]:
    """Return the innermost frame of each stack that is found."""
    [found] = with_trace_stacks([attempt([known])])
    return [stack.frames[0] for stack in found.processes[0].stacks]


def test_the_stacks_are_those_of_the_trace_file(folder: Path) -> None:
    path = dump(folder, 4711)
    [found] = with_trace_stacks([attempt([silent(4711), silent(4712)])])
    [stack], none = found.processes[0].stacks, found.processes[1].stacks
    assert stack.frames[0].startswith("dump (")
    assert any(frame.startswith("test_the_stacks_are_those_of_the_trace_file (") for frame in stack.frames)
    assert (stack.ref.id, stack.ref.source) == (str(path), "file")
    assert none == ()


def test_what_a_companion_recorded_counts_alone(folder: Path) -> None:
    dump(folder, 4711)
    assert stacks(silent(4711, last_phase="step")) == []
    assert stacks(silent(4711, host="another-host")) == []


def test_a_file_of_another_process_with_the_pid_is_not_taken(folder: Path) -> None:
    path = dump(folder, 4711)
    for seconds in (-3_600, 7_200):
        os.utime(path, (time.time() + seconds, time.time() + seconds))
        assert stacks(silent(4711)) == []


def test_a_link_or_a_file_without_a_dump_is_passed_over(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = dump(tmp_path_factory.mktemp("elsewhere"), 4711)
    (folder / path.name).symlink_to(path)
    assert stacks(silent(4711)) == []
    (folder / path.name).unlink()
    (folder / path.name).write_text("nothing", encoding="utf-8")
    assert stacks(silent(4711)) == []


def test_without_the_folder_nothing_is_found(folder: Path) -> None:
    folder.rmdir()
    assert stacks(silent(4711)) == []
