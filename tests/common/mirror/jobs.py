"""Programs that record and mirror, run in processes of their own, and killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ml_diagnostics_common.journal import list_segments, log_directory

from ..journals import LOG, read_all
from .mirrors import identities, raw_identities, read_mirror

__all__ = ["assert_the_mirror_has_the_journal_once", "finish", "recorded_and_killed", "run"]

PROGRAM = '''
import os, sys, time
from pathlib import Path
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.mirror import writer as mirror_writer
from ml_diagnostics_common.mirror.writer import Mirror, start_mirror

root = Path(sys.argv[1])
journal = Journal("goodput_run7", root=root, labels={"job": "run7", "pid": "0"}, segment_bytes=20_000)

def mirror(seconds):
    mirror = Mirror(os.environ["ML_DIAGNOSTICS_MIRROR"], root=root, seconds=seconds, start_seconds=seconds)
    mirror.add("goodput_run7")
    return mirror

def wait_for_an_end():
    """Wait until another writer is marked as ended."""
    from ml_diagnostics_common.mirror._bucket import Bucket

    bucket = Bucket(os.environ["ML_DIAGNOSTICS_MIRROR"])
    deadline = time.monotonic() + 40
    while not any(path.endswith(".end") for path in bucket.list_paths(f"{bucket.path}/")):
        assert time.monotonic() < deadline
        time.sleep(0.05)

def record_for_ever():
    number = 0
    while True:
        # The hour of an entry is over after a hundred: hours are rolled up, too.
        journal.append({"n": number}, timestamp_ns=1_763_769_600_000_000_000 + number * 36_000_000_000)
        number += 1
        if number % 10 == 0:
            time.sleep(0.002)
'''


def run(body: str, root: Path, mirror: str, **arguments: Any) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "ML_DIAGNOSTICS_MIRROR": mirror, "ML_DIAGNOSTICS_DIR": str(root)}
    ignored = ["-W", "ignore:This process:DeprecationWarning", "-W", "ignore:You are using a:FutureWarning"]
    command = [sys.executable, *ignored, "-c", PROGRAM + body, str(root)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **arguments)


def finish(process: subprocess.Popen[bytes], code: int = 0) -> None:
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors.decode()
    assert not errors, errors.decode()


def assert_the_mirror_has_the_journal_once(mirror: str, root: Path) -> None:
    expected = read_all(root)
    assert identities(read_mirror(mirror)) == identities(expected)
    assert sorted(raw_identities(mirror)) == sorted(entry.insert_id for entry in expected)


def recorded_and_killed(root: Path, mirror: str, body: str = "record_for_ever()") -> int:
    """Record in a process that is killed after some entries; return its pid."""
    process = run(body, root, mirror)
    folder = log_directory(root, LOG)
    while not any(segment.size > 2_000 for segment in list_segments(folder)):
        time.sleep(0.01)
        assert process.poll() is None
    process.kill()
    process.communicate()
    return process.pid
