"""Fast-fail in the companion: it goes on where its status file cannot be written, and gives processes their time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from cloud_tpu_diagnostics._companion.fast_fail import FastFail
from cloud_tpu_diagnostics._companion.job import Job
from cloud_tpu_diagnostics._companion.log import EntryLog
from cloud_tpu_diagnostics._fast_fail.star import POSITION
from cloud_tpu_diagnostics._fast_fail.status import REFRESH_SECONDS, read_status
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
from ml_diagnostics_common.processes import start_mark
from ml_diagnostics_common.sidecar_parent import Parent


class Messages:
    """The messages and warnings that a companion sends to its job."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def log(self, level: int, text: str) -> None:
        self.warnings.append(text)


class Companion:
    """Fast-fail of process 0 of two, which is a real process."""

    def __init__(self, config: FastFailConfig) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        self.messages = Messages()
        self.fast_fail = FastFail(
            config.to_json(),
            Job(self.process.pid, None),
            EntryLog({}, is_shipped=False),
            cast("Parent", self.messages),
            {"host": "host-0"},
            None,
        )
        position = {"process_index": 0, "processes": 2, "attempt": "0", "address": None}
        self.fast_fail.handle({"kind": POSITION, **position})

    def step(self, seconds: float = 0.0) -> None:
        """Do what is due after a time."""
        self.fast_fail.step(time.monotonic() + seconds, None, is_suspected=False)

    def has_status(self) -> bool:
        return read_status(self.process.pid, start_mark(self.process.pid)) is not None

    def close(self) -> None:
        self.fast_fail.leave()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def companion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Companion]:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    made = Companion(FastFailConfig(enabled=True))
    yield made
    made.close()
    signal.signal(signal.SIGTERM, before)


def test_a_status_that_cannot_be_written_at_joining_is_written_later(companion: Companion, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "fast_fail"
    folder.parent.mkdir(mode=0o700)
    folder.write_text("")  # No file can be made in it, as on a full disk.
    companion.step()
    assert not companion.has_status()
    folder.unlink()
    companion.step(5.0)
    assert companion.has_status()


def test_the_status_of_a_long_job_is_written_again_so_that_it_does_not_look_old(
    companion: Companion, tmp_path: Path
) -> None:
    companion.step()
    (path,) = (tmp_path / "state" / "fast_fail").iterdir()
    os.utime(path, (0, 0))
    companion.step(REFRESH_SECONDS / 2)
    assert path.stat().st_mtime == 0
    companion.step(REFRESH_SECONDS + 1)
    assert path.stat().st_mtime > 0
