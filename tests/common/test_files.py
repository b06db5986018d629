"""Locks between processes, reads of files that other processes may have replaced, and network file systems."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_common.files import (
    is_network_filesystem,
    open_lock_file,
    open_regular,
    read_regular,
    read_state,
    try_lock,
    wait_for_lock,
    write_state,
)
from ml_diagnostics_common.journal._layout import opened_segment

HOLD = """
import sys, time
from pathlib import Path
from ml_diagnostics_common.files import open_lock_file, try_lock
assert try_lock(open_lock_file(Path(sys.argv[1])))
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_is_held_by_one_process_until_that_is_killed(tmp_path: Path) -> None:
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


def test_a_lock_file_belongs_to_this_user_alone_and_is_never_a_link(tmp_path: Path) -> None:
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


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw
31 30 8:2 / /home/local rw - xfs /dev/sdb rw
32 22 0:41 / /mnt/my\\040bucket rw - fuse.gcsfuse bucket rw
33 22 0:42 / /data rw - ext4 /dev/sdc rw
34 22 0:43 / /data rw - lustre lustre rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "is_network"),
    [
        ("/home/user/.ml-diagnostics", True),
        ("/home/local/x", False),
        ("/homes", False),
        ("/tmp", False),
        ("/mnt/my bucket/x", True),
        ("/data/x", True),
    ],
)
def test_the_innermost_mount_decides(tmp_path: Path, folder: str, is_network: bool) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTS)
    assert is_network_filesystem(Path(folder), mountinfo) is is_network


def test_a_system_without_a_list_of_mounts_has_local_disks(tmp_path: Path) -> None:
    assert is_network_filesystem(tmp_path, tmp_path / "missing") is False


def _plant(kind: str, path: Path) -> None:
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(10 << 30)


@pytest.mark.parametrize("kind", ["a named pipe", "a device", "a folder", "a huge file"])
def test_anything_but_a_small_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    _plant(kind, path)
    with pytest.raises(OSError, match=r"is not a regular file|has more than 1,048,576 bytes"):
        read_regular(path, 1 << 20)
    assert read_state(path) is None
    if kind != "a huge file":
        with pytest.raises(OSError, match=r"is not a regular file|symbolic links"), opened_segment(str(path)):
            pass


def test_a_small_regular_file_is_read_through_a_link_unless_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link", follow_links=False)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 4)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_state(tmp_path / "state.json", {"a": 1})
    assert read_state(tmp_path / "state.json") == {"a": 1}
