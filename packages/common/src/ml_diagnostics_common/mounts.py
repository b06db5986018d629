"""Is a folder on a file system where a write may wait for a network?"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["is_network_filesystem"]

_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"}
)


def is_network_filesystem(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether `path`, which need not exist yet, lies on NFS, a FUSE mount of a bucket, or the like.

    False where the system does not say (it says so on Linux only).
    """
    try:
        mounts = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        target = os.path.realpath(path)
    except (OSError, ValueError):
        return False
    longest, filesystem = "", ""
    for mount in mounts:
        fields, _, kind = mount.partition(" - ")
        words = fields.split(" ")
        if len(words) < 5 or not kind:
            continue
        point = _unescape(words[4])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later hides the earlier.
        if inside and len(point) >= len(longest):
            longest, filesystem = point, kind.split(" ")[0]
    return filesystem in _NETWORK_TYPES or filesystem.startswith("fuse")


def _unescape(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
