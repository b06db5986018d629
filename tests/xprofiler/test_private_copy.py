"""Copies of objects for XProf, and changes of their originals."""

from __future__ import annotations

from pathlib import Path

import pytest
from ml_diagnostics_common.command.errors import NOT_FOUND, exit_code_of
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_testing._xspace import xspace
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from xprofiler.summary.private_copy import PrivateCopy
from xprofiler.summary.profiles import find_profile

_FIRST = {"a": xspace("a", 1, 100), "b": xspace("b", 1, 100)}
_NAME = "l/plugins/profile/session_2025_01_01_00_00_00/{}.xplane.pb"


@pytest.fixture
def bucket(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> CloudStorageServer:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    for host in ("a", "b"):
        cloud_storage_server.write("bucket", _NAME.format(host), _FIRST[host])
    return cloud_storage_server


@pytest.mark.parametrize("content", [xspace("a", 1, 200), xspace("A", 1, 100), b""])
def test_an_object_that_is_written_again_is_copied_again(
    bucket: CloudStorageServer, tmp_path: Path, content: bytes
) -> None:
    copy = PrivateCopy(tmp_path)
    profile = find_profile("gs://bucket/l")
    files = copy.add(profile)
    (cache := files["a"].parent / "ALL_HOSTS.op_stats_v2.pb").write_bytes(b"computed")
    bucket.write("bucket", _NAME.format("a"), content)
    assert copy.add(profile)["a"].read_bytes() == content
    assert files["b"].read_bytes() == _FIRST["b"]
    assert not cache.exists()
    bucket.requests.clear()
    copy.add(profile)
    assert len(bucket.requests) <= 4, "unchanged files are checked, not copied"


def test_a_deleted_object_is_reported(bucket: CloudStorageServer, tmp_path: Path) -> None:
    copy = PrivateCopy(tmp_path)
    profile = find_profile("gs://bucket/l")
    copy.add(profile)
    bucket.delete("bucket", _NAME.format("a"))
    with pytest.raises(ObjectNotFoundError) as raised:
        copy.add(profile)
    assert exit_code_of(raised.value) == NOT_FOUND


def test_a_truncated_file_is_hidden_from_xprof(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "plugins" / "profile" / "s"
    folder.mkdir(parents=True)
    whole = xspace("a", 1, 100)
    for host, content in (("whole", whole), ("cut", whole[: len(whole) // 2]), ("empty", b"")):
        (folder / f"{host}.xplane.pb").write_bytes(content)
    copy = PrivateCopy(tmp_path / "copy")
    files = copy.add(find_profile(str(tmp_path / "logs")))
    placed = tmp_path / "copy" / "plugins" / "profile" / "s"
    assert [file.name for file in placed.iterdir()] == ["whole.xplane.pb"]
    assert files["cut"].read_bytes() == whole[: len(whole) // 2]
    assert files["empty"].read_bytes() == b""
    (folder / "cut.xplane.pb").write_bytes(whole)
    assert copy.add(find_profile(str(tmp_path / "logs")))["cut"] == placed / "cut.xplane.pb"
