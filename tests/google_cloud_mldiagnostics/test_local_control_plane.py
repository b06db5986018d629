"""Runs in a folder: whole files, no change lost among processes, and nothing outside of the folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from google_cloud_mldiagnostics.cli import main
from google_cloud_mldiagnostics.control_plane import Resource, local
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunExistsError, RunNotFoundError
from ml_diagnostics_common.environment import diagnostics_directory


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a lock for as long as another process that holds it may be kept from the CPU."""
    monkeypatch.setattr(local, "_LOCK_SECONDS", 60.0)


@pytest.fixture
def plane(tmp_path: Path) -> LocalControlPlane:
    ticks = iter(range(10**18, 2 * 10**18, 10**9))
    return LocalControlPlane(tmp_path, clock_ns=lambda: next(ticks))


def counted(run: Resource) -> Resource:
    return {**run, "count": run["count"] + 1}


def test_a_run_is_kept_as_it_was_given_with_its_times(plane: LocalControlPlane) -> None:
    created = plane.create_run("train-1", {"displayName": "实验", "configs": {"userConfigs": {"lr": "0.1"}}})
    assert plane.get_run("train-1") == created
    assert created["displayName"] == "实验"
    assert created["name"] == "train-1"
    assert created["createTime"] == created["updateTime"] == "2001-09-09T01:46:40.000000000Z"


def test_a_run_is_created_once(plane: LocalControlPlane) -> None:
    plane.create_run("train-1", {"displayName": "first"})
    with pytest.raises(RunExistsError):
        plane.create_run("train-1", {"displayName": "second"})
    assert plane.get_run("train-1")["displayName"] == "first"


def test_a_change_starts_from_the_stored_run_and_changes_its_etag(plane: LocalControlPlane) -> None:
    created = plane.create_run("train-1", {"count": 0})
    changed = plane.update_run("train-1", counted)
    assert (changed["count"], changed["createTime"]) == (1, created["createTime"])
    assert changed["updateTime"] > created["updateTime"]
    assert changed["etag"] != created["etag"]


def test_no_change_leaves_the_run_as_it_is(plane: LocalControlPlane) -> None:
    created = plane.create_run("train-1", {"count": 0})
    assert plane.update_run("train-1", lambda run: run.clear()) == created
    assert plane.get_run("train-1") == created


def test_the_stamp_of_a_run_changes_with_it(plane: LocalControlPlane) -> None:
    assert plane.stamps() == {}
    for run_id in ("a", "b"):
        plane.create_run(run_id, {"count": 0})
    (plane.runs_folder / "no run").mkdir()
    (plane.runs_folder / "file").write_text("")
    before = plane.stamps()
    assert set(before) == {"a", "b"}
    assert plane.stamps() == before
    plane.update_run("b", counted)
    after = plane.stamps()
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]


def test_a_change_that_fails_changes_nothing_and_leaves_no_lock(plane: LocalControlPlane) -> None:
    plane.create_run("train-1", {"count": 0})
    with pytest.raises(ZeroDivisionError):
        plane.update_run("train-1", lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert plane.update_run("train-1", counted)["count"] == 1


@pytest.mark.parametrize("ask", [LocalControlPlane.get_run, lambda plane, run_id: plane.update_run(run_id, counted)])
def test_a_missing_run_raises_not_found(
    plane: LocalControlPlane, ask: Callable[[LocalControlPlane, str], Resource]
) -> None:
    with pytest.raises(RunNotFoundError, match="mldiagnostics runs"):
        ask(plane, "train-1")


@pytest.mark.parametrize("run_id", ["", "..", "../other", "a/b", "/etc", "a\0b", ".hidden", "a" * 300, "ä"])
def test_no_id_leads_out_of_the_folder(plane: LocalControlPlane, tmp_path: Path, run_id: str) -> None:
    for ask in (plane.get_run, lambda run_id: plane.create_run(run_id, {}), plane.link):
        with pytest.raises(ControlPlaneError):
            ask(run_id)
    assert list(tmp_path.iterdir()) == []


def test_changes_of_threads_are_all_kept(plane: LocalControlPlane) -> None:
    plane.create_run("train-1", {"count": 0})
    threads = [
        threading.Thread(target=lambda: [plane.update_run("train-1", counted) for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plane.get_run("train-1")["count"] == 80


def _change_often(root: str) -> None:
    local._LOCK_SECONDS = 60.0
    plane = LocalControlPlane(Path(root))
    for _ in range(20):
        plane.update_run("train-1", counted)


def test_changes_of_processes_are_all_kept_and_readers_see_whole_files(
    plane: LocalControlPlane, tmp_path: Path
) -> None:
    plane.create_run("train-1", {"count": 0})
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_change_often, args=(str(tmp_path),)) for _ in range(3)]
    for process in processes:
        process.start()
    seen = [0]
    while any(process.is_alive() for process in processes):
        seen.append(plane.get_run("train-1")["count"])
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert seen == sorted(seen)
    assert plane.get_run("train-1")["count"] == 60


def test_a_child_that_was_forked_in_the_middle_of_a_change_blocks_no_other(plane: LocalControlPlane) -> None:
    plane.create_run("train-1", {"count": 0})
    children: list[int] = []

    def fork_and_count(run: Resource) -> Resource:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX, where it is loaded, warns of any fork; this child uses no JAX.
            pid = os.fork()
        if pid == 0:
            os.read(reading, 1)
            os._exit(0)
        children.append(pid)
        return counted(run)

    reading, writing = os.pipe()
    try:
        plane.update_run("train-1", fork_and_count)
        assert plane.update_run("train-1", counted)["count"] == 2
    finally:
        os.write(writing, b"x")
        os.waitpid(children[0], 0)
        os.close(reading)
        os.close(writing)


def test_runs_are_listed_newest_first_and_by_group_and_damaged_ones_are_skipped(
    plane: LocalControlPlane, tmp_path: Path
) -> None:
    for number, group in enumerate(["a", "b", "a"]):
        plane.create_run(f"train-{number}", {"runSet": group})
    for number, damaged in enumerate(["{", "{}", '{"name": 1}', "[" * 200_000]):
        (tmp_path / "runs" / f"damaged-{number}").mkdir()
        (tmp_path / "runs" / f"damaged-{number}" / "run.json").write_text(damaged)
    assert [run["name"] for run in plane.list_runs()] == ["train-2", "train-1", "train-0"]
    assert [run["name"] for run in plane.list_runs("a")] == ["train-2", "train-0"]


def test_no_runs_at_all_are_an_empty_list(plane: LocalControlPlane) -> None:
    assert list(plane.list_runs()) == []
    assert list(plane.list_sessions("train-1")) == []


def test_a_damaged_run_is_reported(plane: LocalControlPlane, tmp_path: Path) -> None:
    plane.create_run("train-1", {})
    (tmp_path / "runs" / "train-1" / "run.json").write_text('["no object"]')
    with pytest.raises(ControlPlaneError, match="damaged"):
        plane.get_run("train-1")


def test_a_session_merges_the_reports_of_all_hosts(plane: LocalControlPlane) -> None:
    plane.create_run("train-1", {})
    for host in ("a", "b"):
        plane.put_session("train-1", "warm/up: 1", {"kind": "K", "targetSessions": {host: {"sessionPhase": "ACTIVE"}}})
    plane.put_session("train-1", "later", {"kind": "K"})
    first, second = plane.list_sessions("train-1")
    assert (first["name"], set(first["targetSessions"])) == ("warm/up: 1", {"a", "b"})
    assert second["name"] == "later"


@pytest.mark.parametrize("session_id", ["../../escape", "x" * 5000, "..", ".", "a/b\0c", "\udc80"])
def test_no_session_is_kept_outside_of_the_runs_folder(
    plane: LocalControlPlane, tmp_path: Path, session_id: str
) -> None:
    plane.create_run("train-1", {})
    plane.put_session("train-1", session_id, {"kind": "K"})
    (path,) = (tmp_path / "runs" / "train-1" / "sessions").glob("*.json")
    assert path.resolve().parent == (tmp_path / "runs" / "train-1" / "sessions").resolve()
    assert len(list(plane.list_sessions("train-1"))) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]


@pytest.mark.skipif("os.getuid() == 0", reason="nothing is read-only for root")
def test_a_folder_that_cannot_be_written_is_reported(plane: LocalControlPlane, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ControlPlaneError, match="cannot be created"):
        plane.create_run("train-1", {})
    tmp_path.chmod(0o700)


def test_files_are_this_users_alone(plane: LocalControlPlane, tmp_path: Path) -> None:
    plane.create_run("train-1", {})
    path = tmp_path / "runs" / "train-1" / "run.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(path.read_text())["name"] == "train-1"


def test_the_link_is_the_runs_folder(plane: LocalControlPlane, tmp_path: Path) -> None:
    assert plane.link("train-1") == str(tmp_path / "runs" / "train-1")


@pytest.mark.parametrize("kind", ["a named pipe", "a device", "a huge file"])
def test_anything_but_a_small_regular_file_is_refused_at_once(
    plane: LocalControlPlane, tmp_path: Path, kind: str
) -> None:
    plane.create_run("train-1", {})
    path = tmp_path / "runs" / "train-1" / "run.json"
    path.unlink()
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(10 << 30)
    with pytest.raises(ControlPlaneError, match=r"cannot be read: it (is not a regular file|has more than)"):
        plane.get_run("train-1")
    with pytest.raises(ControlPlaneError, match="cannot be read"):
        plane.update_run("train-1", counted)
    assert list(plane.list_runs()) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"attempts": 5}, "attempts is a number, expected a list"),
        ({"attempts": {}}, "attempts is an object, expected a list"),
        ({"attempts": [3]}, r"attempts\[0\] is a number, expected an object"),
        ({"attempts": [{"number": "one"}]}, r"attempts\[0\].number is a text, expected a whole number"),
        ({"attempts": [{"number": True}]}, r"attempts\[0\].number is true or false, expected a whole number"),
        ({"attempts": [{"number": 1.5}]}, r"attempts\[0\].number is a number, expected a whole number"),
        ({"attempts": [None]}, r"attempts\[0\] is null, expected an object"),
        ({"attempts": [{"startTime": 7}]}, r"attempts\[0\].startTime is a number, expected a text"),
        (
            {"attempts": [{"processes": [{"pid": "7"}]}]},
            r"attempts\[0\].processes\[0\].pid is a text, expected a whole number",
        ),
        ({"createTime": 7}, "createTime is a number, expected a text"),
        ({"runPhase": 9}, "runPhase is a number, expected a text"),
        ({"displayName": [1]}, "displayName is a list, expected a text"),
        ({"runSet": {}}, "runSet is an object, expected a text"),
        ({"errorDetails": True}, "errorDetails is true or false, expected a text"),
        ({"artifacts": {"gcsPath": 1}}, "artifacts.gcsPath is a number, expected a text"),
        ({"labels": {"attempt": []}}, "labels.attempt is a list, expected a text"),
        ({"configs": {"userConfigs": {"seed": 1}}}, "configs.userConfigs.seed is a number, expected a text"),
        ({"attempts": [{"processes": "x"}]}, r"attempts\[0\].processes is a text, expected a list"),
        ({"attempts": [{"processes": [[]]}]}, r"attempts\[0\].processes\[0\] is a list, expected an object"),
        ({"labels": "x"}, "labels is a text, expected an object"),
        ({"configs": [1]}, "configs is a list, expected an object"),
        ({"configs": {"userConfigs": 1.5}}, "configs.userConfigs is a number, expected an object"),
    ],
)
def test_a_run_of_wrong_types_is_reported_as_damaged_with_its_file(
    plane: LocalControlPlane, tmp_path: Path, content: dict[str, object], problem: str
) -> None:
    plane.create_run("train-1", {})
    (tmp_path / "runs" / "train-1" / "run.json").write_text(json.dumps({"name": "train-1", **content}))
    with pytest.raises(ControlPlaneError, match=f"is damaged: {problem}; move it away, and the run starts from"):
        plane.get_run("train-1")


def test_runs_and_show_warn_once_of_a_run_of_wrong_types_and_list_the_others(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    root = diagnostics_directory()
    plane = LocalControlPlane(root)
    for name in ("train-1", "train-2"):
        plane.create_run(name, {"displayName": "train", "runPhase": "COMPLETED"})
    damaged = {"name": "train-1", "createTime": 7, "runPhase": 9, "displayName": [1], "number": True}
    (root / "runs" / "train-1" / "run.json").write_text(json.dumps(damaged))
    assert main(["runs"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != "-"] == ["run", "train-2"]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert re.search(r"train-1/run.json is damaged: \w+ is a (number|list), expected a text; move it away", warning)
    assert main(["show", "train-1"]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_a_session_of_wrong_types_is_left_out_with_one_warning(
    plane: LocalControlPlane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("first", "second"):
        plane.put_session("train-1", name, {"targetSessions": {"host-1": {"sessionPhase": "SUCCEEDED"}}})
    damaged = {"name": "first", "targetSessions": {"host-1": {"startTime": 7}}}
    (tmp_path / "runs" / "train-1" / "sessions" / "first.json").write_text(json.dumps(damaged))
    for _ in range(2):
        assert [session["name"] for session in plane.list_sessions("train-1")] == ["second"]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "first.json is damaged: targetSessions.host-1.startTime is a number, expected a text" in warning


def test_a_missing_file_is_not_reported_as_damaged(plane: LocalControlPlane, tmp_path: Path) -> None:
    plane.create_run("train-1", {})
    run = {"name": "train-1", "attempts": None, "labels": None, "configs": {"userConfigs": None}}
    (tmp_path / "runs" / "train-1" / "run.json").write_text(json.dumps(run))
    assert plane.get_run("train-1") == run
