from __future__ import annotations

from pathlib import Path

import pytest
from ml_diagnostics_common.files import is_network_filesystem

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
