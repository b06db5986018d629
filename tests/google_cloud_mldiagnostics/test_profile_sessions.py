"""Hosts that profile together share a session, its name is safe, and no file overwrites another."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._profiling import locations, sessions
from google_cloud_mldiagnostics._profiling.locations import UploadMode, location_of, xplane_name
from google_cloud_mldiagnostics._profiling.sessions import SessionIds, checked_session_id
from google_cloud_mldiagnostics.exceptions import ProfilingError
from ml_diagnostics_common import agreement

from .profiled_runs import profiled_run

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.timezone.utc)


def after(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The first value of a key is returned to all processes: the rule of `agreement.agree`."""
    decided: dict[str, str] = {}
    monkeypatch.setattr(sessions, "agree", lambda key, proposal, *, timeout_seconds: decided.setdefault(key, proposal))
    return decided


def test_processes_that_start_together_share_a_session_though_their_clocks_differ(coordinator: dict[str, str]) -> None:
    one, other = SessionIds("run"), SessionIds("run")
    assert one.next(None, after(0)) == other.next(None, after(1.5)) == "2026_11_21_12_00_00_000"
    assert other.next(None, after(300)) == one.next(None, after(302)) == "2026_11_21_12_05_00_000"


def test_a_process_that_profiled_alone_meets_the_others_again(coordinator: dict[str, str]) -> None:
    one, other = SessionIds("run"), SessionIds("run")
    alone = [one.next(None, after(600 * number)) for number in range(3)]
    together = other.next(None, after(3000))
    assert together not in alone
    assert one.next(None, after(3001)) == together


def test_a_process_never_joins_a_session_a_second_time(coordinator: dict[str, str]) -> None:
    one = SessionIds("run")
    coordinator["xprof/run/2"] = first = one.next(None, after(0))
    assert one.next(None, after(1)) != first


def test_a_process_that_is_left_out_still_counts(coordinator: dict[str, str]) -> None:
    one, other = SessionIds("run"), SessionIds("run")
    one.next(None, after(0))
    other.skip(None)
    assert one.next(None, after(5)) == other.next(None, after(5))


def test_a_process_that_was_restarted_alone_meets_the_others_again(coordinator: dict[str, str]) -> None:
    one, other = SessionIds("run"), SessionIds("run")
    for number in range(3):
        assert one.next(None, after(600 * number)) == other.next(None, after(600 * number))
    restarted = SessionIds("run")
    assert restarted.next(None, after(3000)) == one.next(None, after(3001))


def test_a_name_that_the_user_gives_twice_overwrites_nothing() -> None:
    one = SessionIds("run")
    assert [one.next("warm", after(n)) for n in range(3)] == ["warm", "warm-2", "warm-3"]
    other = SessionIds("run")
    other.skip("warm")
    assert other.next("warm", after(9)) == "warm-2"


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ("profiling_session", "profiling_session"),
        ("../../etc/passwd", "_.._etc_passwd"),
        (".hidden", "hidden"),
        ("a b/c\0d", "a_b_c_d"),
        ("実験", "実験"),
        ("", None),
        ("..", None),
        (None, None),
        ("x" * 500, "x" * 120),
    ],
)
def test_a_session_is_a_folder_inside_the_run(given: str | None, checked: str | None) -> None:
    assert checked_session_id(given) == checked


def test_the_stand_in_has_the_signature_of_agree() -> None:
    """The stand-in above has the parameters of the real function."""
    assert agreement.agree("xprof/run/1", "mine", timeout_seconds=1.0) == "mine"


# --- Targets ------------------------------------------------------------------------------------------


def test_without_a_cloud_profiles_go_to_the_runs_own_folder() -> None:
    with profiled_run("run-1") as active:
        location = location_of(active)
    assert (location.logdir, location.mode) == (str(active.folder / "profiles"), UploadMode.MOVED)
    assert location.session("s") == f"{active.folder}/profiles/plugins/profile/s"


def test_with_a_cloud_a_path_must_be_given() -> None:
    with profiled_run("run-1", is_local=False) as active, pytest.raises(ProfilingError, match="gcs_path="):
        location_of(active)


def test_a_given_folder_holds_a_folder_of_each_run(tmp_path: Path) -> None:
    with profiled_run("run-1", gcs_path=str(tmp_path / "all")) as active:
        location = location_of(active)
    assert (location.logdir, location.mode) == (f"{tmp_path}/all/run-1", UploadMode.MOVED)


@pytest.mark.parametrize(("is_local", "mode"), [(True, UploadMode.STAGED), (False, UploadMode.UPLOADED)])
def test_profiles_for_a_bucket_are_uploaded_with_a_cloud_and_staged_without(is_local: bool, mode: UploadMode) -> None:
    with profiled_run("run-1", gcs_path="gs://bucket/folder", is_local=is_local) as active:
        location = location_of(active)
    assert (location.session("s"), location.mode) == ("gs://bucket/folder/run-1/plugins/profile/s", mode)
    assert location.staged_session("s") == active.folder / "staged/plugins/profile/s"


def test_processes_of_one_host_have_files_of_their_own() -> None:
    with profiled_run("run-1") as active:
        assert xplane_name(active, 0, 1) == "host-a"
        names = named_elsewhere(active.folder, (2, 0, 3))
        assert "host-a" in names
        assert len(set(names)) == 3
        # The processes have ended: the name is free.
        assert [xplane_name(active, 7, 4) for _ in range(2)] == ["host-a", "host-a"]
        assert named_elsewhere(active.folder, (2,)) == ["host-a-2"]


def named_elsewhere(folder: Path, indexes: Sequence[int]) -> list[str]:
    """Return the file names of processes that are all alive at once."""
    program = (
        "import sys, types\n"
        "from pathlib import Path\n"
        "from google_cloud_mldiagnostics._profiling.locations import xplane_name\n"
        "active = types.SimpleNamespace(folder=Path(sys.argv[1]), host='host-a')\n"
        "print(xplane_name(active, int(sys.argv[2]), 4), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    jobs = [
        subprocess.Popen([*command, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for index in indexes
    ]
    try:
        return [job.stdout.readline().strip() for job in jobs]
    finally:
        for job in jobs:
            job.communicate()


def test_a_file_system_without_locks_still_keeps_processes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(locations, "wait_for_lock", no_locks)
    with profiled_run("run-1") as active:
        assert {xplane_name(active, index, 2) for index in range(2)} == {"host-a-0", "host-a-1"}
