"""The exit reason of a job, recorded by another process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion.endings import (
    ExitReason,
    Note,
    OutOfMemoryKills,
    ending_of,
    exit_status,
    left_block,
)
from cloud_tpu_diagnostics.entries import DUMP, JOB_ENDED, LEFT_BLOCK

from ..waiting import AtOnce, wait_until
from .accompanied_jobs import Job, Outcome, at_once, ending, of_kind
from .diagnosed_jobs import Job as DiagnosedJob

_BLOCK = """
companion = start()
try:
    {body}
except BaseException as error:
    companion.leave("exception", type(error).__name__, error.code if isinstance(error, SystemExit) else None)
    raise
companion.leave("clean")
"""

_PAGE = """
from ml_diagnostics_common.progress import ProgressPage
page = ProgressPage.create()
companion = start(progress_path=str(page.path))
"""

_SHOWS_STATUS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", {"how": "clean", "exit_code": 0}),
        ("raise ValueError('empty batch')", {"how": "exception", "exception": "ValueError", "exit_code": 1}),
        ("sys.exit(3)", {"how": "exit", "exit_code": 3}),
        ("os._exit(7)", {"how": "exit", "exit_code": 7}),
        ("os.kill(os.getpid(), signal.SIGKILL)", {"how": "signal", "signal": "SIGKILL"}),
        ("os.kill(os.getpid(), signal.SIGTERM)", {"how": "signal", "signal": "SIGTERM"}),
        ("ctypes.string_at(0)", {"how": "signal", "signal": "SIGSEGV"}),
        ("os.abort()", {"how": "signal", "signal": "SIGABRT"}),
    ],
)
@pytest.mark.skipif(not _SHOWS_STATUS, reason="this kernel hides a process's status from others")
def test_every_exit_reason_is_exact(tmp_path: Path, body: str, expected: dict[str, object]) -> None:
    Job(_BLOCK.format(body=body), tmp_path / "trace").end()
    found = ending()
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.skipif(not _SHOWS_STATUS, reason="this kernel hides a process's status from others")
def test_a_crash_after_the_block_is_recorded_too(tmp_path: Path) -> None:
    Job("start().leave('clean'); os.abort()", tmp_path / "trace").end()
    assert ending()["signal"] == "SIGABRT"


@pytest.mark.skipif(not _SHOWS_STATUS, reason="this kernel hides a process's status from others")
def test_the_exception_that_left_the_block_has_its_text_its_frames_and_the_free_space(tmp_path: Path) -> None:
    program = f"""
def save():
    raise OSError(28, "No space left on device: token=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "{tmp_path}/40/state")
with diagnostic.diagnose(config(cloud=True)):
    save()
"""
    DiagnosedJob(program, tmp_path / "debugging").end()
    found = ending()
    assert (found["how"], found["exception"], found["errno"]) == ("exception", "OSError", 28)
    assert found["exception_text"].startswith("[Errno 28] No space left on device")
    assert "hf_abc" not in str(found)
    assert found["exception_frames"][0].startswith("save (<string>:")
    assert found["filename"] == f"{tmp_path}/40/state"
    (disk,) = found["file_systems"]
    assert disk["path"] == found["filename"]
    assert 0 < disk["free_bytes"] <= disk["total_bytes"]


def test_a_job_that_continues_after_its_block_is_recorded_as_having_left_it(tmp_path: Path) -> None:
    job = Job("start().leave('clean'); input()", tmp_path / "trace")
    wait_until(lambda: bool(of_kind(LEFT_BLOCK)))
    (recorded,) = of_kind(LEFT_BLOCK)
    assert recorded["how"] == "clean"
    assert recorded["message"].startswith("The job left the block well, and continues")
    assert job.process.poll() is None
    job.go_on()
    assert job.end() == (0, "", "")


@pytest.mark.parametrize(
    ("left", "last", "expected"),
    [
        ("'exception', 'ValueError'", "os.abort()", {"how": "signal", "signal": "SIGABRT", "exception": "ValueError"}),
        ("'clean'", "os._exit(7)", {"how": "exit", "exit_code": 7}),
        ("'clean'", "os.kill(os.getpid(), signal.SIGKILL)", {"how": "signal", "signal": "SIGKILL"}),
    ],
)
@pytest.mark.skipif(not _SHOWS_STATUS, reason="this kernel hides a process's status from others")
def test_the_end_of_a_process_is_recorded_however_long_after_its_block(
    tmp_path: Path, left: str, last: str, expected: dict[str, object]
) -> None:
    job = Job(f"start().leave({left}); input(); {last}", tmp_path / "trace")
    wait_until(lambda: bool(of_kind(LEFT_BLOCK)))
    assert of_kind(JOB_ENDED) == []
    job.go_on()
    job.end()
    recorded = ending()
    assert {name: recorded.get(name) for name in expected} == expected
    assert len(of_kind(LEFT_BLOCK)) == 1


def test_the_next_block_of_a_process_takes_over_the_record_of_its_end(tmp_path: Path) -> None:
    job = Job(
        """
first = start(); first.leave("clean"); report(first.pid); input()
second = start(); second.leave("clean"); report(second.pid); input()
third = start(); report(third.pid); input(); os._exit(5)
""",
        tmp_path / "trace",
    )
    first = int(job.line())
    wait_until(lambda: len(of_kind(LEFT_BLOCK)) == 1)  # It waits for the end of the process.
    assert Path(f"/proc/{first}").exists()
    job.go_on()
    second = int(job.line())
    job.go_on()  # The second is replaced before it has waited for the end.
    job.line()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (first, second)))
    assert len(of_kind(LEFT_BLOCK)) == 2
    job.go_on()
    job.end()
    assert ending()["exit_code"] == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a process of one's choice")
def test_a_process_that_gets_all_orphans_may_wait_for_its_children_after_the_block(tmp_path: Path) -> None:
    job = """
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
companion = start()
companion.leave("clean")
try:
    while True:
        os.wait()
except ChildProcessError:
    report("waited")
"""
    assert Job(job, tmp_path / "trace").end() == (0, "waited\n", "")
    assert [payload["how"] for payload in of_kind(LEFT_BLOCK)] == ["clean"]
    assert of_kind(JOB_ENDED) == []


def test_the_end_has_its_time_and_the_step_and_phase_that_the_job_was_in(tmp_path: Path) -> None:
    before_ns = time.time_ns()
    job = Job(
        _PAGE + "page.publish('step', 41); page.publish('checkpoint', 42); report(); input(); os._exit(3)",
        tmp_path / "trace",
    )
    job.line()
    job.go_on()
    job.end()
    after_ns = time.time_ns()
    recorded = ending()
    assert (recorded["phase"], recorded["step"]) == ("checkpoint", 42)
    assert 0 <= recorded["progress_age_seconds"] <= (after_ns - before_ns) / 1e9
    assert before_ns < recorded["ended_ns"]


def test_a_block_that_was_left_shows_the_last_step_before_its_end(tmp_path: Path) -> None:
    job = Job(
        _PAGE + "report(companion.pid, page.path); page.publish('step', 41); input(); page.close(); "
        "companion.leave('clean')",
        tmp_path / "trace",
    )
    pid, page = job.line().split()
    wait_until(lambda: Path(page) in [file.resolve() for file in Path(f"/proc/{pid}/fd").iterdir()])
    job.go_on()
    job.end()
    assert (ending()["phase"], ending()["step"]) == ("step", 41)


def test_a_fault_is_an_entry_with_all_of_its_stack(tmp_path: Path) -> None:
    Job("start(); ctypes.string_at(0)", tmp_path / "trace").end()
    assert "it wrote: Fatal Python error: Segmentation fault" in ending()["evidence"]


_FORKS = (
    _PAGE
    + """
from pathlib import Path
if not os.fork():
    ctypes.string_at(0)
os.wait()
segments = Path(os.environ["ML_DIAGNOSTICS_DIR"], "journal")
while not any("Segmentation fault" in segment.read_text() for segment in segments.rglob("*.jsonl")):
    time.sleep(0.01)  # It has not been read.
{life}
time.sleep(4)  # The companion reads each second.
os.kill(os.getpid(), signal.SIGKILL)
"""
)
_LIVES_AFTER_A_FORK = {
    "snapshot": "companion.send({'kind': 'snapshot', 'time_ns': 0, 'threads': 0, 'groups': []})",
    "timer": "faulthandler.dump_traceback_later(0.1, file=companion.timer_descriptor)",
    "progress": "page.publish('step', 3)",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[str, Outcome]:
    return at_once((_FORKS.format(life=life) for life in _LIVES_AFTER_A_FORK.values()), tmp_path_factory)


@pytest.mark.parametrize("life", _LIVES_AFTER_A_FORK.values(), ids=_LIVES_AFTER_A_FORK)
def test_the_fault_of_a_forked_child_is_not_the_jobs(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, Outcome], life: str
) -> None:
    records, _ = outcomes.result(_FORKS.format(life=life))
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
    recorded = ending()
    assert len(of_kind(DUMP)) > 0
    assert "Segmentation fault" not in recorded["evidence"]


FAULT = "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize(
    ("note", "fault", "out_of_memory", "expected"),
    [
        (Note("clean"), None, False, (ExitReason.CLEAN, None, None)),
        (Note("exception", "ValueError"), None, False, (ExitReason.EXCEPTION, None, None)),
        (Note("exception", "SystemExit", 3), None, True, (ExitReason.EXIT, 3, None)),
        (None, FAULT, False, (ExitReason.SIGNAL, None, "SIGSEGV")),
        (None, "Fatal Python error: _PyMem_DebugMalloc: ...", False, (ExitReason.SIGNAL, None, "SIGABRT")),
        (None, None, True, (ExitReason.OUT_OF_MEMORY, None, "SIGKILL")),
        (None, None, False, (ExitReason.KILLED_OR_OS_EXIT, None, None)),
    ],
)
def test_without_an_exit_status_the_reason_follows_from_the_note_the_trace_and_the_control_group(
    note: Note | None, fault: str | None, out_of_memory: bool, expected: tuple[ExitReason, int | None, str | None]
) -> None:
    found = ending_of(None, note, fault=fault, is_out_of_memory=out_of_memory)
    assert (found.reason, found.exit_code, found.signal) == expected


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (Note("clean"), "The job left the block well, and continues"),
        (Note("exception", "ValueError"), "The job left the block with an exception (ValueError), and continues"),
        (Note("exception", "SystemExit", 3), "The job left the block to exit with code 3, and continues"),
    ],
)
def test_a_job_that_continues_after_its_block_has_not_ended(note: Note, message: str) -> None:
    found = left_block(note, is_alive=True)
    assert found.message().startswith(message)
    assert not left_block(note, is_alive=False).message().startswith(message)


def test_only_a_sigkill_is_reported_as_out_of_memory() -> None:
    assert ending_of(signal.SIGKILL, None, fault=None, is_out_of_memory=True).reason is ExitReason.OUT_OF_MEMORY
    assert ending_of(signal.SIGTERM, None, fault=None, is_out_of_memory=True).reason is ExitReason.SIGNAL


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/job\n", "job/memory.events"),
        ("0::/host/path/of/it\n", "memory.events"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ("4:memory:/kubepods/x\n0::/\n", "memory/memory.oom_control"),
    ],
)
def test_kills_for_want_of_memory_are_read_from_both_versions_of_control_groups(
    tmp_path: Path, cgroup: str, file: str
) -> None:
    (tmp_path / "proc" / "17").mkdir(parents=True)
    (tmp_path / "proc" / "17" / "cgroup").write_text(cgroup)
    counts = tmp_path / "cgroup" / file
    counts.parent.mkdir(parents=True)
    counts.write_text("oom 5\noom_kill 2\n")
    kills = OutOfMemoryKills(17, root=str(tmp_path / "cgroup"), proc=str(tmp_path / "proc"))
    kills.check(1.0)
    assert not kills.is_recent(1.0)  # Earlier ones do not count.
    counts.write_text("oom 6\noom_kill 3\n")
    kills.check(2.0)
    kills.check(50.0)
    assert kills.is_recent(50.0)
    assert not kills.is_recent(63.0)


def test_older_kernels_show_the_status_of_a_process_that_waits_to_be_reaped() -> None:
    child = os.fork()
    if not child:
        os._exit(9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    # The process descriptor of an older kernel has no status, and does not show that the process was reaped.
    without_status, other_end = os.pipe()
    assert exit_status(child, without_status) == 9 << 8
    os.waitpid(child, 0)
    assert exit_status(child, without_status, reaping_seconds=0.01) is None
    os.close(without_status)
    os.close(other_end)
