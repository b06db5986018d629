"""The stored results of writing to a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from xprofiler.capture.bucket_access import BucketAccess

_DAY_SECONDS = 86_400.0


class _Clock:
    now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_host_is_tried_until_it_is_known_that_it_cannot_write(tmp_path: Path) -> None:
    file = tmp_path / "state" / "access.json"
    access = BucketAccess("gs://a", file)
    assert access.can_write("host-1")
    access.remember({"host-1": False, "host-2": True})
    for known in (access, BucketAccess("gs://a", file)):
        assert [known.can_write(host) for host in ("host-1", "host-2", "host-3")] == [False, True, True]
    assert BucketAccess("gs://b", file).can_write("host-1")


def test_if_no_pod_could_write_a_new_pod_is_not_tried(tmp_path: Path) -> None:
    BucketAccess("gs://a", tmp_path / "f").remember({"job-x-1": False, "job-x-2": False})
    assert not BucketAccess("gs://a", tmp_path / "f").can_write("job-y-1")


def test_after_a_week_it_is_tried_again(tmp_path: Path) -> None:
    clock = _Clock()
    BucketAccess("gs://a", tmp_path / "f", clock).remember({"host-1": False})
    clock.now += 6 * _DAY_SECONDS
    assert not BucketAccess("gs://a", tmp_path / "f", clock).can_write("host-1")
    clock.now += 2 * _DAY_SECONDS
    assert BucketAccess("gs://a", tmp_path / "f", clock).can_write("host-1")


@pytest.mark.parametrize("content", ["", "[]", '{"gs://a": 1}', '{"gs://a": {"h": 1}}', "\udcff", "[" * 500_000])
def test_a_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    access = BucketAccess("gs://a", file)
    assert access.can_write("h")
    access.remember({"h": False})
    assert not BucketAccess("gs://a", file).can_write("h")


def test_a_capture_works_without_a_writable_state_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    access = BucketAccess("gs://a", tmp_path / "file" / "below")
    access.remember({"h": False})
    assert not access.can_write("h")
