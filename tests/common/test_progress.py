from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common import progress
from ml_diagnostics_common.progress import PHASES, ProgressPage, ProgressReader

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ProgressPage]:
    page = ProgressPage.create(tmp_path / "progress")
    progress.start_publishing(page)
    yield page
    progress.stop_publishing(page)


@pytest.fixture
def reader(page: ProgressPage) -> Iterator[ProgressReader]:
    reader = ProgressReader(page.path)
    yield reader
    reader.close()


def state_of(reader: ProgressReader) -> tuple[str, int | None]:
    state = reader.read()
    assert state is not None
    return state.phase, state.step


def python(code: str, *arguments: object, **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings)


# --- What is published is read ------------------------------------------------------------------------


def test_a_page_is_empty_until_something_is_published(reader: ProgressReader) -> None:
    assert reader.read() is None


def test_what_is_published_is_read(reader: ProgressReader) -> None:
    before = time.monotonic_ns()
    for count, phase in enumerate(PHASES, start=1):
        progress.publish(phase, count)
        state = reader.read()
        assert state is not None
        assert (state.sequence, state.phase, state.step) == (count, phase, count)
        assert before <= state.monotonic_ns <= time.monotonic_ns()
    progress.publish("step")
    assert state_of(reader) == ("step", None)


def test_nothing_happens_without_a_page() -> None:
    assert progress.page_of_this_process is None
    progress.publish("step", 1)


@pytest.mark.parametrize(
    ("phase", "step", "expected"),
    [
        ("step", -1, ("step", -1)),
        ("step", 2**63 - 1, ("step", 2**63 - 1)),
        ("step", 2**63, ("step", None)),
        ("step", -(2**70), ("step", None)),
        ("step", True, ("step", 1)),
        ("step", "7", ("step", None)),
        ("step", 1.5, ("step", None)),
        ("warming up", 3, ("other", 3)),
        ("", None, ("other", None)),
        (None, 3, ("other", 3)),
    ],
)
def test_anything_may_be_published(reader: ProgressReader, phase: Any, step: Any, expected: Any) -> None:
    progress.publish(phase, step)
    assert state_of(reader) == expected


def test_a_phase_that_cannot_be_looked_up_is_left_out(reader: ProgressReader) -> None:
    progress.publish("step", 1)
    progress.publish([], 2)  # type: ignore[arg-type]
    assert state_of(reader) == ("step", 1)


def test_an_array_is_not_asked_for_its_value(reader: ProgressReader) -> None:
    numpy = pytest.importorskip("numpy")

    class NotComputedYet:
        def __index__(self) -> int:
            raise AssertionError("this would wait for the device")

        __int__ = __index__

    progress.publish("step", NotComputedYet())  # type: ignore[arg-type]
    assert state_of(reader) == ("step", None)
    progress.publish("step", numpy.int32(12))
    assert state_of(reader) == ("step", 12)


def test_another_process_reads_it_while_this_one_holds_the_interpreter(tmp_path: Path) -> None:
    code = """
import re, sys
from pathlib import Path
from ml_diagnostics_common import progress
page = progress.ProgressPage.create(Path(sys.argv[1]))
progress.start_publishing(page)
progress.publish("step", 4210)
print(page.path, flush=True)
re.match("(a+)+$", "a" * 60 + "b")  # In C, with the GIL held, for years.
"""
    with python(code, tmp_path) as stuck:
        try:
            assert stuck.stdout is not None
            reader = ProgressReader(stuck.stdout.readline().strip())
            first = reader.read()
            assert state_of(reader) == ("step", 4210)
            assert reader.read() == first
        finally:
            stuck.kill()
    assert state_of(reader) == ("step", 4210)  # The last state of the dead process.
    reader.close()


# --- Whole states only --------------------------------------------------------------------------------


def test_a_reader_sees_whole_states_whoever_publishes_at_the_same_time(tmp_path: Path) -> None:
    """Two threads, the main thread and a signal handler publish at once; then each of them has its turn alone.

    While all publish, a state stays for a microsecond only, and a reader need not see those of each publisher. So the
    test gives one publisher the turn: the others acknowledge that they have stopped before the program answers, and
    each state that is read then must be that publisher's, which goes on writing. It has filled the whole page before:
    a reader that is slower than the publisher may return any state that the page held while it was read.
    """
    code = """
import signal, sys, threading, time
from pathlib import Path
from ml_diagnostics_common import progress
page = progress.ProgressPage.create(Path(sys.argv[1]))
progress.start_publishing(page)
sys.setswitchinterval(1e-5)
turn = None
def publish_once(phase, number):
    current = turn
    count = 16 if current is None else 2048 if current[0] == phase else 0  # As many as the page holds.
    for _ in range(count):
        progress.publish(phase, number)
    if current is not None:
        current[1].add(phase)
def publish(phase, number):
    while True:
        publish_once(phase, number)
def give_turns():
    global turn
    for line in sys.stdin:
        phase = line.strip()
        for _ in range(2):  # The others stop; then its states fill the page.
            acknowledged = set()
            turn = phase, acknowledged
            while not acknowledged >= {"init", "compile", "data", phase}:
                time.sleep(0.001)
        print(phase, flush=True)
signal.signal(signal.SIGALRM, lambda *_: publish_once("checkpoint", 4_000_000_004))
signal.setitimer(signal.ITIMER_REAL, 2e-3, 2e-3)
for phase, number in (("init", 1_000_000_001), ("compile", 2_000_000_002)):
    threading.Thread(target=publish, args=(phase, number), daemon=True).start()
progress.publish("data", 3_000_000_003)
threading.Thread(target=give_turns, daemon=True).start()
print(page.path, flush=True)
publish("data", 3_000_000_003)
"""
    whole = {
        ("init", 1_000_000_001),
        ("compile", 2_000_000_002),
        ("data", 3_000_000_003),
        ("checkpoint", 4_000_000_004),
    }
    with python(code, tmp_path) as job:
        try:
            assert job.stdin is not None
            assert job.stdout is not None
            reader = ProgressReader(job.stdout.readline().strip())
            states = [reader.read() for _ in range(2_000)]
            first, last = states[0], states[-1]
            # Wherever it is stopped, what was published just before is there.
            for _ in range(50):
                job.send_signal(signal.SIGSTOP)
                states.append(reader.read())
                job.send_signal(signal.SIGCONT)
            for phase, number in whole:
                job.stdin.write(f"{phase}\n")
                job.stdin.flush()
                assert job.stdout.readline() == f"{phase}\n"
                alone = [reader.read() for _ in range(200)]
                assert {(state.phase, state.step) for state in alone if state is not None} == {(phase, number)}
                states += alone
        finally:
            job.kill()
    reader.close()
    assert None not in states
    assert {(state.phase, state.step) for state in states if state is not None} == whole
    assert first is not None
    assert last is not None
    assert last.sequence > first.sequence


def test_a_reader_gets_every_state_once_and_the_number_of_those_that_it_missed(
    page: ProgressPage, reader: ProgressReader
) -> None:
    assert reader.read_new() == ([], 0)
    for step in range(100):
        progress.publish("step", step)
    states, lost = reader.read_new()
    assert ([state.step for state in states], lost) == (list(range(100)), 0)
    assert reader.read_new() == ([], 0)
    for step in range(100, 5_000):
        progress.publish("step", step)
    states, lost = reader.read_new()
    assert [state.step for state in states] == list(range(5_000 - len(states), 5_000))
    assert (len(states), lost) == (2048, 4_900 - 2048)
    progress.publish("sync", 5_000)
    ((last,), lost) = reader.read_new()
    assert (last.phase, last.step, lost) == ("sync", 5_000, 0)


def test_a_slot_that_is_half_written_is_passed_over(page: ProgressPage, reader: ProgressReader) -> None:
    for step in range(1, 41):
        progress.publish("step", step)
    with page.path.open("r+b") as file:
        file.seek(41 * 64)  # The next slot: its first number is there, the rest is not.
        file.write((41).to_bytes(8, sys.byteorder))
    assert state_of(reader) == ("step", 40)
    progress.publish("step", 41)
    assert state_of(reader) == ("step", 41)


@pytest.mark.parametrize("cleared", [slice(8, 32), slice(16, 32), slice(8, 16)])
def test_a_slot_being_cleared_is_passed_over(page: ProgressPage, reader: ProgressReader, cleared: slice) -> None:
    # A writer clears a slot before it writes there; a reader may have read the first number before that.
    for step in range(1, 18):
        progress.publish("step", step)
    with page.path.open("r+b") as file:
        file.seek(17 * 64 + cleared.start)
        file.write(bytes(cleared.stop - cleared.start))
    assert state_of(reader) == ("step", 16)


@given(st.binary(max_size=4096))
def test_a_page_of_anything_is_read_without_harm(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("pages") / "1-2-3"
    path.write_bytes(content)
    reader = ProgressReader(path)
    state = reader.read()
    assert state is None or state.phase in PHASES
    reader.close()


# --- The owner of a page ------------------------------------------------------------------------------


def test_the_page_is_private_and_gone_when_publishing_stops(tmp_path: Path) -> None:
    page = ProgressPage.create(tmp_path / "a" / "b")
    assert stat.S_IMODE(page.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(page.path.parent.stat().st_mode) == 0o700
    progress.start_publishing(page)
    reader = ProgressReader(page.path)
    progress.stop_publishing(page)
    assert progress.page_of_this_process is None
    assert list(page.path.parent.iterdir()) == []
    assert state_of(reader) == ("ended", None)
    progress.publish("step", 1)
    page.publish("step", 1)
    progress.stop_publishing(page)
    assert state_of(reader) == ("ended", None)
    reader.close()


def test_a_second_page_of_a_process_replaces_the_first(tmp_path: Path) -> None:
    first, second = ProgressPage.create(tmp_path), ProgressPage.create(tmp_path)
    progress.start_publishing(second)
    progress.stop_publishing(first)
    progress.publish("step", 5)
    path = progress.page_of(os.getpid(), tmp_path)
    assert path is not None
    reader = ProgressReader(path)
    assert state_of(reader) == ("step", 5)
    reader.close()
    progress.stop_publishing(second)
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_a_process_that_has_just_died_stays_for_its_parent(tmp_path: Path) -> None:
    code = """
import pathlib, sys
from ml_diagnostics_common.progress import ProgressPage
page = ProgressPage.create(pathlib.Path(sys.argv[1]))
page.publish("step", 41)
print(page.path, flush=True)
sys.stdin.read()
"""
    with python(code, tmp_path) as dead:
        assert dead.stdout is not None
        left = Path(dead.stdout.readline().strip())
        dead.kill()
        dead.communicate()
    ProgressPage.create(tmp_path).close()
    assert state_of(ProgressReader(left)) == ("step", 41)


def test_the_page_of_a_dead_process_is_nobodys_and_the_next_process_removes_it(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from ml_diagnostics_common.progress import ProgressPage
print(ProgressPage.create(Path(sys.argv[1])).path, flush=True)
sys.stdin.read()
os._exit(0)
"""
    with python(code, tmp_path) as dead:
        assert dead.stdout is not None
        left = Path(dead.stdout.readline().strip())
        assert progress.page_of(dead.pid, tmp_path) == left
        ProgressPage.create(tmp_path).close()
        assert left.exists()  # It lives.
        dead.communicate()
    assert left.exists()
    assert progress.page_of(dead.pid, tmp_path) is None
    # A process with the same number, with another start time.
    mine = ProgressPage.create(tmp_path)
    assert not left.exists()
    pid, _, rest = mine.path.name.partition("-")
    stale = tmp_path / f"{pid}-1-{rest.partition('-')[2]}"
    stale.write_bytes(bytes(4096))
    strangers = tmp_path / f"{pid}-1-anothermachine"
    strangers.write_bytes(bytes(4096))
    (tmp_path / "notes").write_text("the user's")
    assert progress.page_of(os.getpid(), tmp_path) == mine.path
    ProgressPage.create(tmp_path).close()
    assert not stale.exists()
    assert strangers.exists()
    long_ago = time.time() - 40 * 86_400
    os.utime(strangers, (long_ago, long_ago))
    ProgressPage.create(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    mine.close()


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    page = ProgressPage.create(tmp_path / "progress")
    path = page.path
    page.close()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    page = ProgressPage.create(path.parent)
    page.publish("step", 1)
    assert precious.read_text() == "precious"
    assert not path.is_symlink()
    page.close()
    path.symlink_to(precious)
    with pytest.raises(OSError, match=r"symbolic link|[Tt]oo many"):
        ProgressReader(path)


def test_pages_are_kept_in_memory_in_a_folder_of_this_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = progress.progress_directory()
    if not Path("/dev/shm").is_dir():
        assert folder == Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "state" / "progress"
        return
    assert folder.parent == Path("/dev/shm")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Another user's folder of that name is not used.
    monkeypatch.setattr(os, "getuid", lambda: 0 if folder.stat().st_uid else 4711)
    planted = Path(f"/dev/shm/ml-diagnostics-{os.getuid()}")
    planted.mkdir()
    try:
        assert progress.progress_directory() == Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "state" / "progress"
    finally:
        planted.rmdir()


# --- Forked children, and descriptors closed behind our back -----------------------------------------


def test_a_forked_child_drops_the_page_and_never_writes_to_it(page: ProgressPage, reader: ProgressReader) -> None:
    progress.publish("step", 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert progress.page_of_this_process is None
            progress.publish("eval", 2)
            page.publish("eval", 3)
            progress.stop_publishing(page)
            mine = ProgressPage.create(page.path.parent)
            progress.start_publishing(mine)
            progress.publish("eval", 4)
            assert mine.path != page.path
            progress.stop_publishing(mine)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert state_of(reader) == ("step", 1)
    assert page.path.exists()
    progress.publish("step", 2)
    assert state_of(reader) == ("step", 2)


def test_a_job_that_closes_all_descriptors_keeps_its_files(tmp_path: Path) -> None:
    code = """
import gc, os, sys
from pathlib import Path
from ml_diagnostics_common import progress
page = progress.ProgressPage.create(Path(sys.argv[1]) / "progress")
progress.start_publishing(page)
progress.publish("step", 1)
os.closerange(3, 200)
files = [open(Path(sys.argv[1]) / f"file{number}", "w") for number in range(20)]
progress.publish("step", 2)
reader = progress.ProgressReader(page.path)
assert reader.read().step == 2
progress.stop_publishing(page)
del page
gc.collect()
for file in files:
    file.write("kept")
    file.close()
if os.fork() == 0:
    os._exit(0)
"""
    with python(code, tmp_path) as job:
        job.communicate()
    assert job.returncode == 0
    assert [file.read_text() for file in sorted(tmp_path.glob("file*"))] == ["kept"] * 20


def test_pages_leave_no_descriptors_open(tmp_path: Path) -> None:
    def of_pages() -> list[str]:
        """Return the descriptors in the folder: threads of other tests may open and close others meanwhile."""
        gc.collect()
        links = map(_readlink, Path("/proc/self/fd").iterdir())
        return [link for link in links if link.startswith(str(tmp_path))]

    with (tmp_path / "file").open("w"):
        assert of_pages() == [str(tmp_path / "file")]
    for _ in range(20):
        ProgressPage.create(tmp_path).close()
    assert of_pages() == []


def _readlink(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # It was closed meanwhile.
        return ""


def test_a_page_that_cannot_be_made_is_an_os_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ProgressPage.create(tmp_path / "file" / "progress")
    monkeypatch.setattr(os, "write", lambda *_: 100)  # The disk is full.
    with pytest.raises(OSError, match="cannot be written whole"):
        ProgressPage.create(tmp_path / "progress")
    assert list((tmp_path / "progress").iterdir()) == []


def test_publishing_goes_on_in_threads_while_the_page_is_closed(tmp_path: Path) -> None:
    page = ProgressPage.create(tmp_path)
    progress.start_publishing(page)
    errors: list[BaseException] = []
    is_done = threading.Event()

    def publish() -> None:
        try:
            while not is_done.is_set():
                progress.publish("step", 1)
                page.publish("step", 2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    progress.stop_publishing(page)
    time.sleep(0.05)
    is_done.set()
    for thread in threads:
        thread.join()
    assert errors == []


class _Whole(int):
    def __int__(self) -> int:
        raise RuntimeError("theirs")


class _Text(str):
    def __hash__(self) -> int:
        raise RuntimeError("theirs")


class _Nothing:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("theirs")


def test_what_cannot_be_published_raises_nothing(page: ProgressPage, reader: ProgressReader) -> None:
    for step in (_Whole(3), _Nothing()):
        for phase in (_Text("step"), _Nothing(), "step"):
            page.publish(phase, step)  # type: ignore[arg-type]
    assert state_of(reader) == ("step", None)


def test_without_space_in_memory_the_page_is_with_our_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "no folder"
    full.write_text("")
    monkeypatch.setattr(progress, "progress_directory", lambda: full)
    page = ProgressPage.create()
    try:
        assert page.path.parent == Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "state" / "progress"
        assert progress.page_of(os.getpid()) == page.path
    finally:
        page.close()


def test_no_page_is_mapped_on_a_network_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ml_diagnostics_common.files.is_network_filesystem", lambda folder: folder == tmp_path)
    with pytest.raises(OSError, match="is on a network filesystem"):
        ProgressPage.create(tmp_path)
    assert list(tmp_path.iterdir()) == []
