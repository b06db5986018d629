"""The companion's response to a hang, which depends on the job's Python: it can run or not."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion.hangs import HangResponse
from cloud_tpu_diagnostics._companion.job import Job as WatchedJob
from cloud_tpu_diagnostics._dumps.parser import Frame
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, Verdict
from cloud_tpu_diagnostics.entries import DUMP, HANG_SUSPECTED, PROCESS_STATE, SNAPSHOT
from ml_diagnostics_common.progress import Progress

from ..waiting import AtOnce, wait_until
from .accompanied_jobs import Outcome, at_once, ending, of_kind

_WATCHED = """
from ml_diagnostics_common.progress import ProgressPage
page = ProgressPage.create()

def watched(**hang):
    hang = {"enabled": True, "step_floor_seconds": 4.0, "startup_floor_seconds": 60, "snapshots": 2,
            "snapshot_interval_seconds": 0.3, **hang}
    companion = start(progress_path=str(page.path), hang=hang)
    while not is_read_by(companion.pid):
        time.sleep(0.01)
    return companion

def is_read_by(pid):
    # A companion that starts late would see few steps only, and take them for the compilation.
    return str(page.path) in [os.path.realpath(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]

def train():
    for step in range(200):  # The companion checks once a second, and needs three changes.
        page.publish("step", step)
        time.sleep(0.04)

def stuck_here():
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # It holds the GIL.
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_timedlock(mutex, (ctypes.c_long * 2)(int(time.time()) + 14, 0))
"""


_HOLDS_THE_GIL = _WATCHED + "companion = watched()\ntrain()\nstuck_here()\ncompanion.leave('clean')"
_ANSWERS = (
    _WATCHED
    + """
companion = watched()
def answer(message):
    if message["kind"] == "hang":
        group = {"threads": 1, "main": True, "names": [], "frames": ["psum (collectives.py:88)"]}
        companion.send({"kind": "snapshot", "time_ns": 0, "threads": 1, "groups": [group]})
        has_answered.set()
has_answered = threading.Event()
companion._on_message = answer
train()
has_answered.wait()
time.sleep(1.5)  # A job that has not answered is signalled within this time.
companion.leave("clean")
"""
)
_IS_TO_BE_ABORTED = _WATCHED + "watched(abort=True)\ntrain()\nthreading.Event().wait()"
_IS_STOPPED = (
    _WATCHED
    + """
import subprocess
companion = watched()
train()
waiter = 'until grep -qr process_state "$ML_DIAGNOSTICS_DIR"; do sleep 0.1; done; kill -CONT "$0"'
with subprocess.Popen(["sh", "-c", waiter, str(os.getpid())]):
    os.kill(os.getpid(), signal.SIGSTOP)
companion.leave("clean")
"""
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[str, Outcome]:
    return at_once([_HOLDS_THE_GIL, _ANSWERS, _IS_TO_BE_ABORTED, _IS_STOPPED], tmp_path_factory)


def test_a_hang_with_the_gil_held_is_recorded_with_its_frame(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, Outcome]
) -> None:
    records, ended = outcomes.result(_HOLDS_THE_GIL)
    assert ended == (0, "", "")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
    ending()
    (verdict,) = of_kind(HANG_SUSPECTED)
    assert (verdict["phase"], verdict["step"]) == ("step", 199)
    assert verdict["stuck_frame"].startswith("stuck_here (")
    assert "stuck_here" in verdict["message"]
    dumps = of_kind(DUMP)
    assert [dump["trigger"] for dump in dumps] == ["signal"] * 2
    assert (dumps[0]["phase"], dumps[0]["step"]) == ("step", 199)
    (state,) = of_kind(PROCESS_STATE)
    assert state["states"] == ["S", "S"]
    assert state["seconds"] >= 1


def test_a_job_that_can_run_python_is_asked_and_not_signalled(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, Outcome]
) -> None:
    records, ended = outcomes.result(_ANSWERS)
    assert ended == (0, "", "")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
    ending()
    (verdict,) = of_kind(HANG_SUSPECTED)
    assert verdict["stuck_frame"] == "psum (collectives.py:88)"
    assert len(of_kind(SNAPSHOT)) == 1
    assert of_kind(DUMP) == []


def test_a_job_that_is_to_be_aborted_is_ended_after_its_stacks_are_recorded(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, Outcome]
) -> None:
    records, ended = outcomes.result(_IS_TO_BE_ABORTED)
    assert ended[0] == -signal.SIGABRT
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
    assert ending()["signal"] == "SIGABRT"
    assert len(of_kind(HANG_SUSPECTED)) == 1
    assert [dump["trigger"] for dump in of_kind(DUMP)] == ["signal", "signal", "fault"]


def test_a_job_that_stays_stopped_is_recorded_as_stopped_and_not_as_a_hang(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, Outcome]
) -> None:
    records, ended = outcomes.result(_IS_STOPPED)
    assert ended == (0, "", "")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
    ending()
    assert of_kind(HANG_SUSPECTED) == []
    (state,) = of_kind(PROCESS_STATE)
    assert state["states"] == ["T", "T"]
    assert state["cpu_seconds"] == 0


# --- The response itself ------------------------------------------------------------------------------


class _SignalledJob(WatchedJob):
    def __init__(self) -> None:
        super().__init__(os.getpid(), None)
        self.signals: list[int | None] = []

    def ask(self, number: int | None) -> bool:
        self.signals.append(number)
        return True

    def send(self, number: int) -> bool:
        self.signals.append(number)
        return True


_PROGRESS = Progress(7, 0, "step", 3)


def respond(
    job: _SignalledJob,
    *,
    until: float,
    goes_on_at: float = 1e9,
    ask_to_exit: Callable[[], object] | None = None,
    **hang: object,
) -> tuple[list[float], float]:
    """Step a response through time; return when the verdict was written, and when everything was done."""
    config = HangConfig(enabled=True, snapshots=3, snapshot_interval_seconds=2.0, **hang)  # type: ignore[arg-type]
    written: list[float] = []
    now = 0.0
    verdict = Verdict("step", 3, 30.0, 30.0)
    response = HangResponse(
        verdict, _PROGRESS, config, job, 10, lambda *_: written.append(now), now, ask_to_exit=ask_to_exit
    )
    while now < until:
        progress = _PROGRESS._replace(sequence=8) if now >= goes_on_at else _PROGRESS
        wait = response.step(progress, now)
        if wait is None:
            break
        now += wait
    return written, now


def test_the_verdict_is_written_soon_without_a_frame_if_none_is_reported() -> None:
    job = _SignalledJob()
    (written,), _ = respond(job, until=60)
    assert written == pytest.approx(1.5, abs=0.1)
    assert job.signals == [10, 10, 10]


def test_on_a_busy_machine_the_verdict_waits_for_a_frame_that_was_requested_late() -> None:
    entries: list[dict[str, object]] = []
    stuck_at = 1.6
    response = HangResponse(
        Verdict("step", 3, 30.0, 30.0),
        _PROGRESS,
        HangConfig(),
        _SignalledJob(),
        10,
        lambda entry, _: entries.append(entry),
        0.0,
        is_stuck=lambda now: now >= stuck_at,
    )
    for now in (0.0, stuck_at, stuck_at + 0.5):
        response.step(_PROGRESS, now)
    assert not entries
    response.add_frame(Frame("/job/train.py", 7, "stuck_here"), by_python=False)
    response.step(_PROGRESS, stuck_at + 0.9)
    assert [entry["stuck_frame"] for entry in entries] == ["stuck_here (train.py:7)"]


def test_a_job_that_does_not_end_after_the_abort_is_killed_in_the_end() -> None:
    job = _SignalledJob()
    respond(job, until=600, abort=True)
    assert job.signals == [10, 10, 10, signal.SIGABRT, signal.SIGKILL]


def test_process_1_is_asked_to_end_itself_as_no_signal_ends_it() -> None:
    asked: list[str] = []
    respond(_SignalledJob(), until=600, abort=True, ask_to_exit=lambda: asked.append("exit"))
    assert asked == ["exit"]


def test_a_job_that_makes_progress_before_the_abort_is_not_ended() -> None:
    job = _SignalledJob()
    respond(job, until=600, goes_on_at=5.0, abort=True)
    assert signal.SIGABRT not in job.signals


def test_the_first_reported_frame_counts() -> None:
    entries: list[dict[str, object]] = []
    response = HangResponse(
        Verdict("step", None, 30.0, 30.0),
        _PROGRESS,
        HangConfig(),
        _SignalledJob(),
        None,
        lambda e, _: entries.append(e),
        0.0,
    )
    response.add_frame(Frame("/job/train.py", 7, "step"), by_python=True)
    response.add_frame(Frame("/job/other.py", 8, "late"), by_python=True)
    response.step(_PROGRESS, 0.1)
    assert [entry["stuck_frame"] for entry in entries] == ["step (train.py:7)"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_program_that_has_replaced_the_job_gets_none_of_its_signals() -> None:
    process = subprocess.Popen(
        ["sh", "-c", "echo; read line; exec sleep 60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # It has started completely.
        job = WatchedJob(process.pid, None)
        assert job.send(signal.SIGCONT)
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(lambda: not job.is_same_program())
        assert not job.send(signal.SIGKILL)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
