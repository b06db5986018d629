"""A block and its companion: the entries, and the block without a companion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ..waiting import AtOnce, wait_until
from .diagnosed_jobs import Job, run

_COMPANION = """
from cloud_tpu_diagnostics._collect import blocks
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

def companion():
    while blocks._current._companion._process.pid is None:
        time.sleep(0.01)
    return blocks._current._companion._process.pid
"""


def _entries(kind: str) -> list[dict[str, Any]]:
    """Return the payloads of that kind in the journal."""
    payloads = []
    for segment in Path(os.environ["ML_DIAGNOSTICS_DIR"]).glob("journal/*runtime_monitor/*.jsonl"):
        for line in segment.read_text().splitlines():
            if line.endswith("}") and "p" in (entry := json.loads(line)):
                payloads.append(entry["p"])
    return [payload for payload in payloads if payload["kind"] == kind]


def test_the_file_grows_and_entries_are_made_of_it(tmp_path: Path) -> None:
    job = Job(
        """
threading.Thread(target=time.sleep, args=(100,), daemon=True, name="theirs").start()
with diagnostic.diagnose(config(0.2, cloud=True)):
    input()
""",
        tmp_path / "d",
    )
    wait_until(lambda: len(_entries("snapshot")) > 1 and _entries("dump"))
    job.go_on()
    code, _, err = job.end()
    assert (code, err) == (0, "")
    assert job.trace().startswith("INFO: Not a crash.")
    # Our own threads are not listed.
    assert [group["names"] for group in _entries("snapshot")[-1]["groups"]] == [["MainThread"], ["theirs"]]
    wait_until(lambda: _entries("job_ended"))
    assert _entries("job_ended")[0]["how"] == "clean"


def test_an_exception_that_leaves_the_block_is_recorded(tmp_path: Path) -> None:
    job = Job("with diagnostic.diagnose(config(cloud=True)): raise OSError('theirs')", tmp_path / "d")
    assert job.end()[0] == 1
    wait_until(lambda: _entries("job_ended"))
    assert _entries("job_ended")[0]["how"] == "exception"


@pytest.mark.parametrize("cloud", [True, False])
def test_a_block_continues_if_its_companion_dies(tmp_path: Path, cloud: bool) -> None:
    job = Job(
        _COMPANION
        + f"""
traces = config(0.3, cloud={cloud})
traces.debug_config.hang_config = HangConfig(enabled=True)
with diagnostic.diagnose(traces):
    os.kill(companion(), signal.SIGKILL)
    while blocks._current._companion is not None:
        time.sleep(0.01)
    print("gone", file=sys.stderr, flush=True)
    input()
    diagnostic.heartbeat(1)
""",
        tmp_path / "d",
    )
    if cloud:
        job.wait_for_stderr("gone")
        wait_until(lambda: min(job.trace().count(each) for each in ("Timeout (", "INFO: Not a crash.")) >= 2)
    else:
        job.wait_for_stderr("Timeout (", 2, after="gone")
        job.wait_for_stderr("INFO: Not a crash.", 2, after="gone")
    job.go_on()
    code, _, err = job.end()
    assert code == 0
    assert err.count("The process beside the job has ended") == 1
    written = job.trace() if cloud else err.partition("gone")[2]
    assert written.count("Timeout (") >= 2
    assert written.count("INFO: Not a crash.") >= 2


@pytest.mark.parametrize("end", ["os.kill(companion(), signal.SIGKILL)", "os.closerange(3, 1024)"])
def test_without_its_companion_the_block_answers_no_request_and_writes_to_no_file_of_the_job(
    tmp_path: Path, end: str
) -> None:
    code, out, _ = run(
        _COMPANION
        + f"""
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
hangs = debug_configuration.DebugConfig(None, HangConfig(enabled=True))
with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(hangs)):
    companion()
    watchdog = blocks._current._watchdog
    questions = watchdog.dump_signal, watchdog.main_thread_signal
    {end}
    while blocks._current._companion is not None:
        time.sleep(0.01)
    theirs = [os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(500)]
    for number in questions:
        raise_signal(number)
output("left")
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert (code, out) == (0, "left\n")
    assert (tmp_path / "theirs").read_text() == ""


def test_after_the_job_has_closed_all_descriptors_nothing_of_the_companion_stays_in_the_block(tmp_path: Path) -> None:
    code, out, err = run(
        _COMPANION
        + """
with diagnostic.diagnose(config(cloud=True)):
    companion()
    page = pathlib.Path(blocks._current._companion._progress_path)
    questions = blocks._current._watchdog.dump_signal, blocks._current._watchdog.main_thread_signal
    os.closerange(3, 1024)
    theirs = [os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(500)]
    deadline = time.monotonic() + 20
    while page.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    output(page.exists())
    for number in questions:
        raise_signal(number)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert (code, out) == (0, "False\n"), err
    assert err.count("The program has closed the descriptors of diagnose()") == 1, err
    assert "The process beside the job" not in err
    assert "Bad file descriptor" not in err
    assert (tmp_path / "theirs").read_text() == ""


@pytest.mark.parametrize("interval", [600, 0.2], ids=["found by the companion's end", "found by the next stack trace"])
def test_one_message_has_all_that_ends_as_the_job_closes_all_descriptors(tmp_path: Path, interval: float) -> None:
    """Also if stderr is a file, which is written to directly and stays open."""
    code, out, _ = run(
        _COMPANION
        + f"""
os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
traces = config({interval})
traces.debug_config.hang_config = HangConfig(enabled=True)
with diagnostic.diagnose(traces):
    companion()
    os.closerange(3, 1024)
    while blocks._current._companion is not None:
        time.sleep(0.01)
output("left")
""",
        tmp_path / "d",
        str(tmp_path / "stderr"),
    )
    err = (tmp_path / "stderr").read_text()
    assert (code, out) == (0, "left\n"), err
    assert err.count("there are no more stack traces in this block, and hangs are not detected. Enter it after") == 1
    assert "The process beside the job" not in err
    assert "continue" not in err


def test_a_block_continues_if_its_companion_cannot_start(tmp_path: Path) -> None:
    job = Job(
        """
sys.executable = ""
def dumps():
    return sum(file.read_text().count("Timeout (") for file in trace_file.FOLDER.glob("*"))
for _ in range(2):
    before = dumps()
    with diagnostic.diagnose(config(0.2, cloud=True)):
        while dumps() == before:
            time.sleep(0.01)
output("each has dumped")
""",
        tmp_path / "d",
    )
    code, out, err = job.end()
    assert (code, out) == (0, "each has dumped\n")
    assert err.count("The process beside the job cannot be started") == 1


def test_a_stopped_companion_stops_nothing(tmp_path: Path) -> None:
    """Its pipe is full then, and its socket."""
    code, out, _ = run(
        _COMPANION
        + """
def deep(levels):
    if levels:
        deep(levels - 1)
    else:
        time.sleep(100)
for _ in range(90):
    threading.Thread(target=deep, args=(90,), daemon=True).start()
with diagnostic.diagnose(config(0.05, cloud=True)):
    os.kill(companion(), signal.SIGSTOP)
    time.sleep(2)
    pid = companion()
output("left")
os.kill(pid, signal.SIGKILL)
os._exit(0)
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "left\n")


def test_a_hang_calls_back_and_takes_snapshots(tmp_path: Path) -> None:
    job = Job(
        _COMPANION
        + """
called = threading.Event()
def on_hang(verdict):
    output(verdict.phase, verdict.step)
    called.set()
    raise RuntimeError("theirs")
from cloud_tpu_diagnostics.configuration import hang_configuration
hang_configuration.checked = lambda config: config  # Users may not set as little as a second.
hangs = HangConfig(
    enabled=True, step_floor_seconds=60, startup_floor_seconds=60, pause_floor_seconds=1,
    snapshots=2, snapshot_interval_seconds=0.1, on_hang=on_hang)
block = diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(None, hangs))
with diagnostic.diagnose(block):
    diagnostic.heartbeat(7, "eval")
    called.wait(20)
    input()
diagnostic.heartbeat(1)
""",
        tmp_path / "d",
    )
    wait_until(lambda: _entries("hang_suspected") and len(_entries("snapshot")) == 2)
    job.go_on()
    code, out, err = job.end()
    assert (code, out) == (0, "eval 7\n")
    assert err.count("on_hang has failed") == 1
    assert "RuntimeError: theirs" in err
    assert (len(_entries("hang_suspected")), len(_entries("snapshot"))) == (1, 2)
    assert not (tmp_path / "d").exists()


_STUCK = """
from cloud_tpu_diagnostics.configuration import hang_configuration
hang_configuration.checked = lambda config: config  # Users may not set as little as a second.
hangs = hang_configuration.HangConfig(enabled=True, step_floor_seconds=2, snapshots=2, snapshot_interval_seconds=0.1)
traces = None if sys.argv[2] == "nothing" else config(cloud=sys.argv[2] == "file").debug_config.stack_trace_config
block = diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(traces, hangs))
class Moment(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
def stuck_here():
    mutex, library = ctypes.create_string_buffer(128), ctypes.PyDLL(None)  # Holds the GIL.
    library.pthread_mutex_lock(mutex)
    # No signal ends it, as one would end usleep().
    library.pthread_mutex_timedlock(mutex, ctypes.byref(Moment(int(time.time()) + 9, 0)))
with diagnostic.diagnose(block):
    signal.signal(signal.SIGUSR1, lambda *_: output("theirs"))
    wait_for_reader_of_progress()
    for step in range(350):  # The companion checks once a second, and needs three changes.
        diagnostic.heartbeat(step)
        time.sleep(0.02)
    stuck_here()
"""


_TARGETS = ("console", "file", "nothing")

_ENDS_WITHOUT_DESCRIPTORS = (
    "os.closerange(3, 4096); time.sleep(2); os._exit(0)",
    "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(2)'])",
)

_READS_OF_A_BUSY_LOOP = 3000
"""In a second it reads some 20,000 times; at its end a companion reads some hundreds of times, to import modules."""


def _end_without_spinning(end: str, folder: Path, **popen: Any) -> Job:
    job = Job(
        _COMPANION
        + f"""
with diagnostic.diagnose(config(cloud=True)):
    output(companion())
    input()
    {end}
""",
        folder,
        **popen,
    )
    counts = Path(f"/proc/{job.line()}/io")

    def reads() -> int | None:
        """Return how often it has read; None once it has ended."""
        try:
            return int(counts.read_text().split()[5])
        except (FileNotFoundError, ProcessLookupError, PermissionError, IndexError):
            return None

    before = reads()
    assert before is not None, "this kernel does not count reads"
    job.go_on()
    while (now := reads()) is not None:
        assert now - before < _READS_OF_A_BUSY_LOOP
        time.sleep(0.01)
    return job


_Outcome: TypeAlias = tuple[Path, Job, tuple[int, str, str]]
"""The records of a job; the job; its exit code, stdout and stderr."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[str, _Outcome]:
    """Return the outcome of a stuck job by its target, and of a job by how it closed its descriptors."""

    def outcome(of: str) -> _Outcome:
        records, folder = tmp_path_factory.mktemp("ml-diagnostics"), tmp_path_factory.mktemp("job") / "d"
        env = {**os.environ, "ML_DIAGNOSTICS_DIR": str(records)}
        job = Job(_STUCK, folder, of, env=env) if of in _TARGETS else _end_without_spinning(of, folder, env=env)
        return records, job, job.end(100)

    return AtOnce(outcome, [*_TARGETS, *_ENDS_WITHOUT_DESCRIPTORS])


def test_a_hang_with_the_gil_held_is_reported_with_its_frame_at_any_output_without_a_signal_of_the_program(
    monkeypatch: pytest.MonkeyPatch, outcomes: AtOnce[str, _Outcome]
) -> None:
    for target in _TARGETS:
        records, job, (code, out, err) = outcomes.result(target)
        assert (code, out) == (0, ""), err
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(records))
        wait_until(lambda: _entries("job_ended"))
        (verdict,) = _entries("hang_suspected")
        assert verdict["stuck_frame"].startswith("stuck_here ("), target
        written = job.trace() if target == "file" else err
        assert "in stuck_here" in written
        # The output of stacks also names the hang.
        assert f"{verdict['message']}\n" in written
        assert verdict["message"].startswith(
            f"The job has made no progress for about {verdict['timeout_seconds']:.0f} s, the timeout of phase "
        )


_IS_PROCESS_1 = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*_IS_PROCESS_1, "true"], capture_output=True).returncode != 0,
    reason="process 1 of a namespace is not permitted here",
)
def test_a_hanging_process_1_is_asked_to_end_itself_with_a_warning(tmp_path: Path) -> None:
    program = """
from cloud_tpu_diagnostics.configuration import hang_configuration
hang_configuration.checked = lambda config: config  # Users may not set as little as a second.
hangs = hang_configuration.HangConfig(
    enabled=True, pause_floor_seconds=1, snapshots=1, snapshot_interval_seconds=0, abort=True)
assert os.getpid() == 1
with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(None, hangs))):
    diagnostic.heartbeat(7, "eval")
    threading.Event().wait()
"""
    job = Job(program, tmp_path / "d", prefix=_IS_PROCESS_1)
    code, _, err = job.end()
    assert code == 134
    assert "python -m cloud_tpu_diagnostics run -- COMMAND" in err


def test_each_stack_has_the_step_even_without_hang_detection(tmp_path: Path) -> None:
    job = Job(
        """
with diagnostic.diagnose(config(0.2, cloud=True)):
    diagnostic.heartbeat(41, "checkpoint")
    input()
""",
        tmp_path / "d",
    )
    for kind in ("dump", "snapshot"):
        wait_until(lambda kind=kind: any(found.get("step") == 41 for found in _entries(kind)))  # type: ignore[misc]
        assert all(found.get("phase") in (None, "checkpoint") for found in _entries(kind))
    job.go_on()
    assert job.end()[::2] == (0, "")
    assert not _entries("hang_suspected")


def test_if_stderr_is_a_socket_the_companion_waits_for_its_reader(tmp_path: Path) -> None:
    """Under systemd it is one."""
    code, _, _ = run(
        """
import socket
reader, writer = socket.socketpair()
os.dup2(writer.fileno(), 2)
with diagnostic.diagnose(config(0.2)):
    written = b""
    while written.count(b"Timeout (") < 2:
        written += reader.recv(1000)
assert b"INFO: Not a crash." in written
""",
        tmp_path / "d",
    )
    assert code == 0


def test_an_unknown_backend_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "nowhere")
    _, _, err = run("with diagnostic.diagnose(config(cloud=True)): output('in')", tmp_path / "d")
    assert "ConfigurationError: ML_DIAGNOSTICS_BACKEND is 'nowhere'" in err


@pytest.mark.parametrize("end", _ENDS_WITHOUT_DESCRIPTORS)
def test_a_companion_does_not_spin_once_the_job_has_closed_its_descriptors(
    outcomes: AtOnce[str, _Outcome], end: str
) -> None:
    _, _, (code, _, err) = outcomes.result(end)  # Its reads were counted while it ran.
    assert code == 0
    assert ("The program has closed the descriptors" in err) == ("closerange" in end)
