"""Mirrors in a folder and in a bucket of the loopback server, through the real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_testing.cloud_storage import CloudStorageServer


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
