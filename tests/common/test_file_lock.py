"""A lock between processes is one process's at a time, and free when that process is gone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_common.files import open_lock_file, try_lock, wait_for_lock

HOLD = """
import sys, time
from pathlib import Path
from ml_diagnostics_common.files import open_lock_file, try_lock
assert try_lock(open_lock_file(Path(sys.argv[1])))
print("held", flush=True)
time.sleep(60)
"""


def test_it_is_one_processs_until_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = open_lock_file(path)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not try_lock(descriptor)
        with pytest.raises(OSError, match="another process holds the lock") as caught:
            wait_for_lock(descriptor, 0.02)
        assert caught.value.errno == errno.ETIMEDOUT
        holder.kill()
    wait_for_lock(descriptor, 10)
    os.close(descriptor)


def test_its_file_is_this_users_alone_and_never_a_link(tmp_path: Path) -> None:
    os.close(open_lock_file(tmp_path / "lock"))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the system
        open_lock_file(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_distinguished_from_a_taken_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    descriptor = open_lock_file(tmp_path / "lock")
    with pytest.raises(OSError, match="No locks") as caught:
        try_lock(descriptor)
    assert caught.value.errno == errno.ENOLCK
    os.close(descriptor)
