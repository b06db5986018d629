"""Files that others may have replaced: regular ones of a limited size are read, and nothing is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ml_diagnostics_common.files import open_regular, read_regular, read_state, write_state
from ml_diagnostics_common.journal._layout import opened_segment


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
