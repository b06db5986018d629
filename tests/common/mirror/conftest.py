"""Mirrors in a folder and in a bucket of the loopback server, through the real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._round import MirrorRound
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..journals import LOG


@pytest.fixture
def cloud_storage_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]


@pytest.fixture(params=["folder", "bucket"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of an empty mirror."""
    if request.param == "folder":
        return str(tmp_path / "mirror")
    request.getfixturevalue("cloud_storage_server")
    return "gs://bucket/team/mirror"


@pytest.fixture
def round_of() -> Iterator[Any]:
    """Make rounds without a thread, and release their writers at the end."""
    rounds: list[MirrorRound] = []

    def make(mirror: str, root: Path, **options: Any) -> MirrorRound:
        names = {log_folder_name(LOG)}
        bucket = Bucket(mirror, deadline_seconds=5.0)
        rounds.append(MirrorRound(bucket, root, names, options.pop("counters", Counters()), **options))
        return rounds[-1]

    yield make
    for each in rounds:
        each.release()
