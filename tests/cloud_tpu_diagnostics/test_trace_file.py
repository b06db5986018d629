"""The file of stack traces: one for each process, in a folder that other users can write to."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._collect import trace_file

from ..waiting import wait_until
from .diagnosed_jobs import Job, run

_BLOCK = """
without_companion()
with diagnostic.diagnose(config(cloud=True)):
    raise_signal(signal.SIGUSR1)
"""
_NOW = time.time()
_DAY_SECONDS = 86400.0


def test_the_file_is_in_the_folder_of_agents_and_readable_by_them(tmp_path: Path) -> None:
    job = Job("os.umask(0o077)\n" + _BLOCK, tmp_path / "d")
    job.end()
    (file,) = job.files()
    assert re.fullmatch(rf"stack_trace_\d{{4}}(_\d\d){{5}}_.+_{job.process.pid}\.txt", file.name)
    assert file.stat().st_mode & 0o7777 == 0o644
    assert file.parent.stat().st_mode & 0o7777 == 0o1777
    assert "most recent call first" in job.trace()


def test_the_documented_folder_is_the_default() -> None:
    assert Path("/tmp/debugging") == trace_file.FOLDER


def test_processes_of_the_same_second_never_share_a_file(tmp_path: Path) -> None:
    program = "input()\ntime.strftime = lambda form: '2026_11_21_15_04_05'.join(('stack_trace_', ''))\n" + _BLOCK
    jobs = [Job(program, tmp_path / "d") for _ in range(4)]
    for job in jobs:
        job.go_on()
    for job in jobs:
        assert job.end()[0] == 0
    files = jobs[0].files()
    assert len(files) == 4
    assert all(file.read_text().count("Current thread") == 1 for file in files)


def test_an_existing_file_of_the_same_name_is_not_written_to(tmp_path: Path) -> None:
    """Another container may have the same host name and pid."""
    code, _, _ = run(
        """
time.strftime = lambda form: "stack_trace_2026_11_21_15_04_05"
trace_file.FOLDER.mkdir()
theirs = trace_file.FOLDER / f"stack_trace_2026_11_21_15_04_05_{trace_file.host_in_names()}_{os.getpid()}.txt"
theirs.write_text("theirs")
"""
        + _BLOCK
        + "assert theirs.read_text() == 'theirs'",
        tmp_path / "d",
    )
    assert code == 0
    assert len(list((tmp_path / "d").iterdir())) == 2


def test_a_process_has_one_file_for_all_its_blocks(tmp_path: Path) -> None:
    job = Job(_BLOCK + "time.sleep(1.1)" + _BLOCK, tmp_path / "d")
    job.end()
    assert job.trace().count("Current thread") == 2


def test_a_deleted_or_replaced_file_is_created_again(tmp_path: Path) -> None:
    job = Job(
        _BLOCK
        + """
(file,) = trace_file.FOLDER.iterdir()
file.unlink()
file.symlink_to(sys.argv[2])
"""
        + _BLOCK,
        tmp_path / "d",
        str(tmp_path / "target"),
    )
    assert job.end()[0] == 0
    assert not (tmp_path / "target").exists()
    assert len(job.files()) == 2


# --- Folders that cannot be used ---


def _unusable(kind: str, folder: Path) -> None:
    if kind == "a link":
        (folder.parent / "elsewhere").mkdir()
        folder.symlink_to(folder.parent / "elsewhere")
    elif kind == "a file":
        folder.write_text("theirs")
    elif kind == "a link to nothing":
        folder.symlink_to(folder.parent / "nothing")


@pytest.mark.parametrize("kind", ["a link", "a file", "a link to nothing"])
def test_without_a_folder_the_console_is_used_with_one_warning(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "d"
    _unusable(kind, folder)
    code, _, err = run(_BLOCK + _BLOCK, folder)
    assert code == 0
    assert err.count("No stack traces can be written in") == 1
    assert err.count("Current thread") == 2
    assert not list((tmp_path).glob("*/stack_trace_*"))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_where_another_user_could_replace_our_files_a_folder_of_our_own_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    code, _, err = run(_BLOCK + _BLOCK, folder)
    assert code == 0
    assert err.count("belongs to another user") == 1
    assert f"chmod 1777 {folder}" in err
    (file,) = (tmp_path / "d_user_0").glob("stack_trace_*")
    assert file.read_text().count("Current thread") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("planted", ["another's folder", "a link"])
def test_a_foreign_folder_of_our_name_is_not_used(tmp_path: Path, planted: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    (tmp_path / "target").mkdir()
    if planted == "a link":
        (tmp_path / "d_user_0").symlink_to(tmp_path / "target")
    else:
        (tmp_path / "d_user_0").mkdir()
        os.chown(tmp_path / "d_user_0", 12345, -1)
    code, _, err = run(_BLOCK, folder)
    assert code == 0
    assert "Current thread" in err
    assert not list(tmp_path.rglob("stack_trace_*"))


_AS_NOBODY = "import fcntl, socket, ssl, cloud_tpu_diagnostics._collect.blocks\nos.setgid(65534)\nos.setuid(65534)\n"
"""That user may not be able to read our modules."""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that every user can enter and write, as /tmp; pytest's own are for one user."""
    shared = Path(tempfile.mkdtemp(prefix="shared-host-"))
    shared.chmod(0o1777)
    yield shared
    shutil.rmtree(shared)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("first", ["", _AS_NOBODY])
def test_the_second_user_of_a_host_also_has_a_file_in_the_folder_of_agents(shared: Path, first: str) -> None:
    folder = shared / "debugging"
    for user in (first, _AS_NOBODY if not first else ""):
        code, _, err = run(user + _BLOCK, folder)
        assert code == 0
        assert str(folder) not in err  # No warning on it.
    files = list(folder.glob("stack_trace_*"))
    assert sorted(file.stat().st_uid for file in files) == [0, 65534]
    assert all("Current thread" in file.read_text() for file in files)
    assert all(file.stat().st_mode & 0o7777 == 0o644 for file in files)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_folder_that_an_earlier_version_made_for_its_user_alone_is_opened_to_all_by_that_user(shared: Path) -> None:
    folder = shared / "debugging"
    folder.mkdir(mode=0o755)
    code, _, err = run(_AS_NOBODY + _BLOCK, folder)
    assert code == 0
    assert "stack traces are written in" in err
    (file,) = (shared / "debugging_user_65534").glob("stack_trace_*")
    assert file.stat().st_uid == 65534
    assert str(folder) not in run(_BLOCK, folder)[2]
    assert str(folder) not in run(_AS_NOBODY + _BLOCK, folder)[2]
    assert sorted(file.stat().st_uid for file in folder.glob("stack_trace_*")) == [0, 65534]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_companion_writes_to_no_file_that_replaced_ours(tmp_path: Path) -> None:
    from cloud_tpu_diagnostics._companion.output import FileOutput

    (tmp_path / "secret").write_text("theirs")
    (tmp_path / "link").hardlink_to(tmp_path / "secret")
    (tmp_path / "given").write_text("theirs")
    os.chown(tmp_path / "given", 12345, -1)
    for name in ("link", "given"):
        with pytest.raises(PermissionError, match="was replaced"):
            FileOutput(str(tmp_path / name), 0, 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_an_unwritable_folder_is_not_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o755)
    # That user may not be able to read our modules.
    code, _, err = run("import fcntl, cloud_tpu_diagnostics._collect.blocks\nos.seteuid(12345)\n" + _BLOCK, folder)
    assert code == 0, err
    assert "No stack traces can be written in" in err
    assert "Current thread" in err


# --- Old files ---


def _file(folder: Path, name: str, *, days: float, size: int = 10) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (_NOW - days * _DAY_SECONDS,) * 2)
    return path


def _name(pid: int, host: str = "elsewhere", second: int = 5) -> str:
    return f"stack_trace_2026_11_21_15_04_{second:02}_{host}_{pid}.txt"


def test_old_files_of_dead_processes_are_deleted_and_no_others(tmp_path: Path) -> None:
    old = _file(tmp_path, _name(1), days=8)
    kept = [
        _file(tmp_path, _name(2), days=6),
        _file(tmp_path, "stack_trace_2026_11_21_15_04_05.txt", days=100),  # Of the public package.
        _file(tmp_path, "stack_trace_notes.txt", days=100),
        _file(tmp_path, "debug.log", days=100),
        _file(tmp_path, _name(os.getpid(), trace_file.host_in_names()), days=100),
        _file(tmp_path, _name(3), days=100),
        tmp_path / _name(4),
        tmp_path / _name(5),
    ]
    kept[-2].symlink_to(tmp_path / "debug.log")
    kept[-1].mkdir()
    with kept[5].open() as held_by_a_living_process:
        fcntl.flock(held_by_a_living_process, fcntl.LOCK_EX)
        trace_file.prune(tmp_path, _NOW + 1)
        assert not old.exists()
        assert all(path.exists() for path in kept)
    trace_file.prune(tmp_path, _NOW + 1)
    assert not kept[5].exists()


def test_above_the_total_size_the_oldest_go_first(tmp_path: Path) -> None:
    files = [_file(tmp_path, _name(number), days=number / 10, size=100) for number in range(1, 5)]
    fresh = _file(tmp_path, _name(9), days=0, size=1000)
    trace_file.prune(tmp_path, _NOW, most_total_bytes=250)
    assert not any(file.exists() for file in files)
    assert fresh.exists()  # A shipper may still read it.
    fresh.unlink()
    files = [_file(tmp_path, _name(number), days=number / 10, size=100) for number in range(1, 5)]
    trace_file.prune(tmp_path, _NOW, most_total_bytes=250)
    assert [file.exists() for file in files] == [True, True, False, False]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_file_is_not_deleted(tmp_path: Path) -> None:
    theirs = _file(tmp_path, _name(1), days=100)
    os.chown(theirs, 12345, -1)
    trace_file.prune(tmp_path, _NOW)
    assert theirs.exists()


def test_a_block_prunes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    old = _file(folder, _name(1), days=30)
    job = Job("without_companion()\nwith diagnostic.diagnose(config(cloud=True)): input()", folder)
    wait_until(lambda: not old.exists(), running=job.process)
    job.go_on()
    job.end()
    assert len(job.files()) == 1


def test_a_full_file_gets_no_more_periodic_dumps(tmp_path: Path) -> None:
    job = Job(
        """
trace_file.MOST_FILE_BYTES = 2000
without_companion()
with diagnostic.diagnose(config(0.05, cloud=True)):
    for _ in range(1000):
        time.sleep(0.01)
        if trace_file.Path(next(trace_file.FOLDER.iterdir())).stat().st_size > 2000:
            break
    time.sleep(0.3)
    before = next(trace_file.FOLDER.iterdir()).stat().st_size
    time.sleep(0.3)
    output(next(trace_file.FOLDER.iterdir()).stat().st_size == before)
    raise_signal(signal.SIGUSR1)
    output(next(trace_file.FOLDER.iterdir()).stat().st_size > before)
""",
        tmp_path / "d",
    )
    code, out, err = job.end()
    assert (code, out.split()) == (0, ["True", "True"])
    assert err.count("The file of stack traces is full") == 1


def test_after_all_descriptors_were_closed_nothing_is_written_to_files_that_get_their_numbers(tmp_path: Path) -> None:
    job = Job(
        """
without_companion()
with diagnostic.diagnose(config(0.1, cloud=True)):
    os.closerange(3, 1000)
    theirs = [os.open(f"{sys.argv[2]}{number}", os.O_WRONLY | os.O_CREAT) for number in range(50)]
    input()
    raise_signal(signal.SIGUSR1)
for number in theirs:
    os.fstat(number)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    _wait_for_report(job)
    job.go_on()
    assert job.end()[0] == 0
    assert all(file.read_text() == "" for file in tmp_path.glob("theirs*"))


def test_closed_descriptors_are_reported_though_a_folder_was_being_read(tmp_path: Path) -> None:
    job = Job(
        """
def scandir(path, scandir=os.scandir):
    entries = scandir(path)
    os.closerange(3, 1000)
    return entries
os.scandir = scandir
without_companion()
with diagnostic.diagnose(config(1, cloud=True)):
    input()
""",
        tmp_path / "d",
    )
    _wait_for_report(job)
    job.go_on()
    assert job.end()[0] == 0


def _wait_for_report(job: Job) -> None:
    """Wait until the job reports that its descriptors were closed."""
    assert job.process.stderr is not None
    while "has closed the descriptors of diagnose()" not in (line := job.process.stderr.readline()):
        assert line, "the job ended without a report"
