"""`summary` and `serve` find the profiles of captures and of programs, and no other files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ml_diagnostics_common.command.errors import (
    NOT_FOUND,
    NOT_PERMITTED,
    TIMED_OUT,
    NotFoundError,
    UsageError,
    exit_code_of,
)
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_testing._xspace import xspace
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang, Reset, Status
from xprofiler.summary.private_copy import PrivateCopy
from xprofiler.summary.profiles import find_profile, find_profiles, path_of_run, profiles_among

from ..waiting import bound_port
from .typed_commands import typed

_XPLANE, _LATER = xspace("a", 1, 100), xspace("b", 1, 100)
_OLD, _NEW = "session_2026_11_21_10_00_00", "2026_11_21_10_00_01"


def _capture(folder: Path, session: str, *hosts: str) -> Path:
    made = folder / "plugins" / "profile" / session
    made.mkdir(parents=True)
    for host in hosts:
        (made / f"{host}.xplane.pb").write_bytes(_XPLANE)
    return made


def _names(path: str | Path) -> list[str]:
    return [profile.name for profile in find_profiles(str(path))]


def test_profiles_of_captures_and_of_programs_are_found_the_newest_first(tmp_path: Path) -> None:
    _capture(tmp_path / "tensorboard", _OLD, "a", "b")
    _capture(tmp_path, _NEW, "a")
    assert _names(tmp_path) == [_NEW, f"tensorboard/{_OLD}"]
    assert sorted(find_profiles(str(tmp_path))[1].xplanes) == ["a", "b"]


def test_a_run_of_this_machine_is_found_by_its_name_and_the_last_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, here = tmp_path / "root", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(root))
    assert path_of_run("last") == "last"
    instrumented, plain = root / "profiles" / "digits", root / "runs" / "digits-20261123" / "profiles"
    for age, folder in enumerate([plain, instrumented]):
        sessions = _capture(folder, _OLD, "a").parent
        os.utime(sessions, (1e9 + age, 1e9 + age))
    assert path_of_run("digits") == str(instrumented) == path_of_run("last")
    assert path_of_run("digits-20261123") == str(plain)
    assert _names(path_of_run("last")) == [_OLD]
    os.utime(plain / "plugins" / "profile", (2e9, 2e9))
    assert path_of_run("last") == str(plain)
    for text in ("digit", "..", "../here", "gs://bucket/digits", ""):
        assert path_of_run(text) == text
    (here / "digits").mkdir()
    assert path_of_run("digits") == "digits", "a path that exists wins"
    ended = typed("summary", "nosuch")
    assert (ended.code, str(root) in ended.errors) == (NOT_FOUND, True)


def test_any_parent_folder_of_a_profile_finds_it(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "run" / "tensorboard", _OLD, "a")
    assert _names(tmp_path) == [f"run/tensorboard/{_OLD}"]
    for path in (folder, folder.parent, folder.parent.parent, folder / "a.xplane.pb", f"{folder}/"):
        assert _names(path) == [_OLD], path
    loose = tmp_path / "loose"
    loose.mkdir()
    (loose / "h.xplane.pb").write_bytes(b"x")
    assert _names(loose) == ["loose"]


def test_a_path_may_start_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _capture(tmp_path / "logs", _OLD, "a")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _names("~/logs") == [_OLD]


def test_other_files_than_profiles_are_skipped(tmp_path: Path) -> None:
    folder = _capture(tmp_path, _OLD, "a")
    (folder / "a.trace.json.gz").write_bytes(b"x")
    (folder / ".xplane.pb").write_bytes(b"x")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "b.xplane.pb").write_bytes(b"x")
    (tmp_path / "elsewhere.xplane.pb.txt").write_bytes(b"x")
    (profile,) = find_profiles(str(tmp_path))
    assert list(profile.xplanes) == ["a"]


def test_names_with_parent_folders_or_control_characters_are_skipped() -> None:
    root = "gs://bucket/logs"
    evil = [
        f"{root}/../plugins/profile/s/h.xplane.pb",
        f"{root}/plugins/profile/../h.xplane.pb",
        f"{root}/plugins/profile/s/..xplane.pb",
        f"{root}/plugins/profile/s/...xplane.pb",
        f"{root}//plugins/profile/s/h.xplane.pb",
        f"{root}/plugins/profile/s\x1b[2J/h.xplane.pb",
        f"{root}/plugins/profile/s/\udcff.xplane.pb",
    ]
    assert profiles_among(evil, root) == []
    assert [each.name for each in profiles_among([f"{root}/a/plugins/profile/s/h.xplane.pb"], root)] == ["a/s"]


def test_a_session_is_chosen_by_its_name_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="capture one with"):
        find_profile(str(tmp_path))
    with pytest.raises(NotFoundError, match=r"nowhere does not exist"):
        find_profile(str(tmp_path / "nowhere"))
    _capture(tmp_path / "one", _OLD, "a")
    _capture(tmp_path / "two", _OLD, "a")
    _capture(tmp_path, _NEW, "a")
    assert find_profile(str(tmp_path)).name == _NEW
    assert find_profile(str(tmp_path), f"one/{_OLD}").name == f"one/{_OLD}"
    with pytest.raises(UsageError, match="use one of the full names"):
        find_profile(str(tmp_path), _OLD)
    with pytest.raises(NotFoundError, match=f"the newest are {_NEW}"):
        find_profile(str(tmp_path), "session_no")


def test_a_bucket_is_searched_at_the_path_of_captures_and_otherwise_as_a_whole(
    cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    cloud_storage_server.write("bucket", f"logs/run/plugins/profile/{_OLD}/a.xplane.pb", b"old")
    assert _names("gs://bucket/logs") == [f"run/{_OLD}"]
    assert _names("gs://bucket") == [f"logs/run/{_OLD}"]
    cloud_storage_server.write("bucket", f"logs/tensorboard/plugins/profile/{_NEW}/a.xplane.pb", b"new")
    assert _names("gs://bucket/logs/") == [f"tensorboard/{_NEW}"]
    assert _names("gs://bucket/none") == []


def test_a_missing_or_forbidden_bucket_is_reported(
    cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match="no-such-bucket") as raised:
        find_profiles("gs://no-such-bucket/logs")
    assert exit_code_of(raised.value) == NOT_FOUND
    cloud_storage_server.faults.always(Status(403))
    with pytest.raises(StorageError, match="test-bucket") as raised:
        find_profiles("gs://test-bucket/logs")
    assert exit_code_of(raised.value) == NOT_PERMITTED


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        with pytest.raises(StorageError) as raised:
            find_profiles(str(tmp_path))
        assert exit_code_of(raised.value) == NOT_PERMITTED
    finally:
        tmp_path.chmod(0o700)


def test_xprof_may_write_beside_a_copy_and_changes_are_copied(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "logs", _OLD, "a")
    copy = PrivateCopy(tmp_path / "copy")
    files = copy.add(find_profile(str(tmp_path / "logs")))
    assert files["a"].read_bytes() == _XPLANE
    cache = files["a"].parent / "ALL_HOSTS.op_stats_v2.pb"
    cache.write_bytes(b"computed")
    assert copy.add(find_profile(str(tmp_path / "logs"))) == files
    assert cache.exists()
    (folder / "b.xplane.pb").write_bytes(_LATER)
    assert copy.add(find_profile(str(tmp_path / "logs")))["b"].read_bytes() == _LATER
    assert not cache.exists(), "what was computed of one host stands for both"
    assert sorted(file.name for file in folder.iterdir()) == ["a.xplane.pb", "b.xplane.pb"]


def test_a_copy_of_objects_is_complete(
    cloud_storage_server: CloudStorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    for host in range(6):
        cloud_storage_server.write("bucket", f"l/plugins/profile/{_OLD}/h{host}.xplane.pb", xspace(f"h{host}", 1, 100))
    files = PrivateCopy(tmp_path).add(find_profile("gs://bucket/l"))
    assert {host: file.read_bytes() for host, file in files.items()} == {
        f"h{n}": xspace(f"h{n}", 1, 100) for n in range(6)
    }
    assert files["h0"] == tmp_path / "plugins" / "profile" / _OLD / "h0.xplane.pb"


@pytest.mark.timing
@pytest.mark.parametrize("fault", [Hang(), Status(502), Reset()], ids=repr)
def test_a_storage_with_invalid_answers_is_given_up(
    cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch, fault: Hang | Status | Reset
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    cloud_storage_server.faults.always(fault)
    started = time.monotonic()
    with pytest.raises(StorageError, match="did not answer well within 1 s") as raised:
        find_profiles("gs://test-bucket/logs", answer_seconds=1.0)
    assert exit_code_of(raised.value) == TIMED_OUT
    assert time.monotonic() - started < 10


def test_without_an_answer_the_command_reports_that_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with bound_port() as port:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        ended = typed("summary", "gs://test-bucket/logs", timeout_seconds=100)
    assert (ended.code, ended.output) == (5, "")
    assert ended.errors.startswith("Waiting for an answer about gs://test-bucket/logs ...\nxprofiler: cannot list ")
