"""`goodput watch` over a mirror: a refresh costs what is new, and writers are asked to write more often."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import LogPaths
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from .laptops import Laptop, steps
from .test_watch import Clock, watch

MIRROR = "gs://bucket/team"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]


@pytest.fixture
def laptop(server: CloudStorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    return Laptop(tmp_path, MIRROR, monkeypatch)


def test_a_refresh_without_anything_new_sends_two_requests_at_most(laptop: Laptop, server: CloudStorageServer) -> None:
    now = time.time()
    laptop.mirrored("run-7", steps(now - 400, 30, is_ended=False), is_ended=False)
    counts: list[int] = []
    clock = Clock(now, *itertools.repeat(lambda: counts.append(len(server.requests)), 5))
    code, out, _ = watch(clock, "run-7", "--mirror", MIRROR, "--count", "6")
    assert (code, len(out.splitlines())) == (0, 6)
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 2
    assert "   mirror " in out.splitlines()[-1]
    assert out.splitlines()[-1].endswith(" behind, complete; no gap")


def test_writers_are_asked_for_more_objects_while_a_command_watches(laptop: Laptop) -> None:
    now = time.time()
    writer = laptop.mirrored("run-7", steps(now - 400, 30, is_ended=False), is_ended=False)
    asked: list[int] = []
    path = LogPaths.of(MIRROR, "goodput_run-7").watch(writer)
    clock = Clock(now, *itertools.repeat(lambda: asked.append(json.loads(Bucket(MIRROR).read(path))["at"]), 3))
    watch(clock, "run-7", "--mirror", MIRROR, "--every", "70", "--count", "4")
    assert [(at - int(now * 1e9)) // 10**9 for at in asked] == [0, 0, 140]


def test_the_end_of_a_job_elsewhere_ends_the_command(laptop: Laptop) -> None:
    now = time.time()
    laptop.mirrored("run-7", steps(now - 400, 30, is_ended=False), is_ended=False)

    def end() -> None:
        laptop.mirrored("run-7", [{"job_end_time": now + 5}])

    clock = Clock(now, end)
    code, out, _ = watch(clock, "run-7", "--mirror", MIRROR)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "   ended   " in out.splitlines()[1]


def test_json_has_how_far_the_mirror_is_behind(laptop: Laptop) -> None:
    now = time.time()
    laptop.mirrored("run-7", steps(now - 400, 30, is_ended=False), is_ended=False)
    written = time.time()
    _, out, _ = watch(Clock(written + 20), "run-7", "--mirror", MIRROR, "--format", "json", "--count", "1")
    assert 19 < json.loads(out)["mirror_lag_seconds"] < 21 + (written - now)
