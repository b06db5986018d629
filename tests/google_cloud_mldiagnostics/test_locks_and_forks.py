"""A child that is forked while a lock is held does not keep it, however long it lives."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from google_cloud_mldiagnostics._profiling import locations
from google_cloud_mldiagnostics._profiling.locations import xplane_name
from google_cloud_mldiagnostics._system_metrics.sampler import Claims
from google_cloud_mldiagnostics.core.global_manager import ActiveRun
from ml_diagnostics_common import files
from ml_diagnostics_common.files import open_lock_file, try_lock, unlock

OUTLIVED = """
    import os, sys
    from pathlib import Path
    from google_cloud_mldiagnostics._system_metrics.sampler import Claims

    claims = Claims(Path(sys.argv[1]), "host-a")
    assert claims.hold("host")
    if os.fork() == 0:  # As a worker of a data loader.
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    sys.stdout.flush()
    {end}
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "claims.release(); os._exit(0)"])
def test_a_worker_that_outlives_its_parent_does_not_keep_the_claims_on_metrics(tmp_path: Path, end: str) -> None:
    program = textwrap.dedent(OUTLIVED).format(end=end)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "forked\n"
        parent.wait(30)
        assert Claims(tmp_path, "host-a").hold("host")
        parent.stdin.close()


def test_the_end_of_a_child_does_not_affect_its_parent(tmp_path: Path) -> None:
    claims = Claims(tmp_path, "host-a")
    assert claims.hold("host")
    assert _in_child(lambda: not claims._held)
    assert not Claims(tmp_path, "host-a").hold("host")
    claims.release()
    assert Claims(tmp_path, "host-a").hold("host")


def test_unlocking_is_for_forked_children_too(tmp_path: Path) -> None:
    ours, other = open_lock_file(tmp_path / "lock"), open_lock_file(tmp_path / "lock")
    copy = os.dup(ours)  # As a child has it.
    assert try_lock(ours)
    os.close(ours)
    assert not try_lock(other)
    unlock(copy)
    assert try_lock(other)
    os.close(copy)
    os.close(other)


def test_a_child_that_is_forked_while_a_file_is_named_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []

    def wait_for_lock(descriptor: int, timeout_seconds: float) -> None:
        files.wait_for_lock(descriptor, timeout_seconds)
        copies.append(os.dup(descriptor))

    monkeypatch.setattr(locations, "wait_for_lock", wait_for_lock)
    active = cast("ActiveRun", types.SimpleNamespace(folder=tmp_path, host="host-a"))
    assert [xplane_name(active, 1, 2, lock_seconds=0.1) for _ in range(2)] == ["host-a", "host-a"]
    for copy in copies:
        os.close(copy)


def _in_child(holds: Callable[[], bool]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of any fork.
        child = os.fork()
    if child == 0:
        os._exit(0 if holds() else 1)
    return os.waitpid(child, 0)[1] == 0
