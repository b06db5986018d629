"""SIGUSR1 harms no job, however busy and however often, and each dump is complete."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion.job import StuckCheck
from cloud_tpu_diagnostics._dumps.parser import Dump, Trigger, parse_dumps
from cloud_tpu_diagnostics._signals import SignalsAmidText

from ..waiting import wait_until
from .diagnosed_jobs import Job, run

_WORKERS = 3
_SETTLE_SECONDS = 0.2
"""A request that the main thread does not answer is answered by another, some 50 ms later."""

_JOBS = {
    "json": """
import json
data = {"a": [1, 2, {"b": "c" * 20}] * 20, "z": {str(i): i for i in range(50)}}
def work():
    json.loads(json.dumps(data))
    time.sleep(0.0005)
""",
    # C code that calls Python, code that is made and freed, and calls that return: frames that change all the time.
    "calls": """
class Least:
    def __init__(self, value): self.value = value
    def __lt__(self, other): return self.value < other.value
def work():
    list(map(lambda value: -value, range(100)))
    sorted(Least(i % 7) for i in range(30))
    names = {}
    exec(compile("def deep(n):\\n return n and deep(n - 1)\\n", str(time.time_ns()), "exec"), names)
    names["deep"](30)
""",
    "deep": """
def deep(levels):
    if levels:
        return deep(levels - 1)
    time.sleep(0.0005)
def work():
    deep(80)
""",
}

_RUN = f"""
steps = 0
def forever():
    global steps
    while True:
        work()
        steps += 1
def report():
    for _ in sys.stdin:
        before = steps
        while steps < before + 20:
            time.sleep(0.01)
        output("still working")
with diagnostic.diagnose(config(cloud=sys.argv[2] == "file")):
    for function in [report, *[forever] * {_WORKERS - 1}]:
        threading.Thread(target=function, daemon=True).start()
    output("ready")
    forever()
"""


def _send(job: Job, signals: int, pause_seconds: float) -> None:
    for number in range(signals):
        job.process.send_signal(signal.SIGUSR1)
        assert job.process.poll() is None, f"it ended with {job.process.poll()} after {number} signals"
        if pause_seconds:
            time.sleep(pause_seconds)


def _require_complete(job: Job, target: str, stderr: str) -> list[Dump]:
    text = stderr if target == "console" else job.trace()
    assert "Fatal Python error" not in stderr
    dumps = parse_dumps(text)
    assert len(dumps) == text.count("Current thread 0x")
    assert {dump.trigger for dump in dumps} == {Trigger.SIGNAL}
    for dump in dumps:
        assert len(dump.threads) >= 1 + _WORKERS, dump.text
        assert [thread.frames[-1].function for thread in dump.threads if thread.is_current] == ["<module>"], dump.text
        assert not dump.is_cut
    # Python leaves out the thread that answers, C does not.
    assert not re.search(r"signal_wakeups\.py\", line \d+ in _run\n", text), "C wrote a dump"
    return dumps


def _survives(job: Job, target: str, bursts: list[tuple[int, float]]) -> list[Dump]:
    assert job.line() == "ready"
    for signals, pause_seconds in bursts:
        _send(job, signals, pause_seconds)
    time.sleep(_SETTLE_SECONDS)
    job.go_on()
    assert job.line() == "still working"
    return _require_complete(job, target, job.kill())


@pytest.mark.parametrize("target", ["console", "file"])
@pytest.mark.parametrize("work", _JOBS)
def test_signals_end_no_job_that_runs_and_each_dump_is_complete(tmp_path: Path, work: str, target: str) -> None:
    job = _Job(_JOBS[work] + _RUN, tmp_path, target)
    assert _survives(job, target, [(300, 0.001), (300, 0.0)])


def test_each_signal_of_a_slow_series_has_its_dump(tmp_path: Path) -> None:
    job = _Job(_JOBS["json"] + _RUN, tmp_path, "console")
    assert job.line() == "ready"
    for number in range(1, 11):
        _send(job, 1, 0)
        wait_until(lambda number=number: job.stderr().count("Current thread 0x") >= number)  # type: ignore[misc]
    time.sleep(_SETTLE_SECONDS)  # None is written twice.
    assert len(_require_complete(job, "console", job.kill())) == 10


def test_a_deep_thread_that_signals_its_own_process_harms_nothing(tmp_path: Path) -> None:
    code, out, err = run(
        """
def deep(levels):
    if levels:
        return deep(levels - 1)
    for _ in range(500):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.0002)
with diagnostic.diagnose(config(cloud=True)):
    thread = threading.Thread(target=deep, args=(120,))
    thread.start()
    while thread.is_alive():
        sum(range(100))
output("done")
""",
        tmp_path / "d",
    )
    assert (code, out, err) == (0, "done\n", "")


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("pause_seconds", [0.02, 0.0])
def test_20_000_signals_end_no_job(tmp_path: Path, pause_seconds: float) -> None:
    """At 50 a second for 400 s, and as fast as possible; six jobs side by side."""
    jobs = [
        (target, _Job(_JOBS[work] + _RUN, tmp_path / f"{work}-{target}", target))
        for work in _JOBS
        for target in ("console", "file")
    ]
    for _, job in jobs:
        assert job.line() == "ready"
    for _ in range(20_000):
        for _, job in jobs:
            _send(job, 1, 0)
        if pause_seconds:
            time.sleep(pause_seconds)
    time.sleep(_SETTLE_SECONDS)
    for target, job in jobs:
        job.go_on()
        assert job.line() == "still working"
        dumps = _require_complete(job, target, job.kill())
        assert len(dumps) > (10_000 if pause_seconds else 100)


def test_faulthandler_does_not_read_a_job_that_is_only_late(tmp_path: Path) -> None:
    """Sixty threads take turns with the GIL: each waits for it for some 0.3 s."""
    job = _Job(
        """
is_ready = threading.Event()  # To start threads beside others that compute takes long.
def spin():
    is_ready.wait()
    while True: pass
def report():
    for _ in sys.stdin:
        output("still working")
with diagnostic.diagnose(config(cloud=sys.argv[2] == "file")):
    for function in [report, *[spin] * 60]:
        threading.Thread(target=function, daemon=True).start()
    is_ready.set()
    output("ready")
    spin()
""",
        tmp_path,
        "file",
    )
    assert len(_survives(job, "file", [(5, 0.5)])) <= 5


def test_above_100_threads_all_are_dumped(tmp_path: Path) -> None:
    code, _, err = run(
        """
for _ in range(150):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
with diagnostic.diagnose(config()):
    raise_signal(signal.SIGUSR1)
os._exit(0)
""",
        tmp_path / "d",
    )
    (dump,) = parse_dumps(err)
    assert code == 0
    assert len(dump.threads) >= 151
    assert not dump.is_cut


def test_a_call_to_the_system_is_not_interrupted(tmp_path: Path) -> None:
    """Nor does it fail: faulthandler's handler overwrites errno, and time.sleep has raised an OSError for it."""
    code, out, err = run(
        """
read, write = os.pipe()
libc = ctypes.CDLL(None, use_errno=True)
def signals():
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.002)
    os.write(write, b"x")
with diagnostic.diagnose(config(cloud=True)):
    threading.Thread(target=signals).start()
    buffer = ctypes.create_string_buffer(1)
    output(libc.read(read, buffer, 1), ctypes.get_errno())
""",
        tmp_path / "d",
    )
    assert (code, out, err) == (0, "1 0\n", "")


def test_an_event_loop_still_receives_its_signals(tmp_path: Path) -> None:
    """asyncio needs the wake-up descriptor, of which a process has one."""
    code, out, err = run(
        """
import asyncio
async def receive(number):
    received = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(number, received.set)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(received.wait(), 20)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.sleep(0.2)
    output("received")
async def before():
    with diagnostic.diagnose(config()):
        await receive(signal.SIGHUP)
async def around():
    received = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, received.set)
    with diagnostic.diagnose(config()):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(received.wait(), 20)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.2)
    received.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(received.wait(), 20)
    output("received around")
asyncio.run(around())
asyncio.run(before())
with diagnostic.diagnose(config()):
    asyncio.run(receive(signal.SIGALRM))
    os.kill(os.getpid(), signal.SIGUSR1)
output(signal.set_wakeup_fd(-1))
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "received around\nreceived\nreceived\n-1\n"), err
    assert err.count("Current thread") == 4


def test_a_forked_child_dumps_its_own_stacks(tmp_path: Path) -> None:
    code, _, err = run(
        """
def in_child():
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)
def in_parent(pid):
    os.waitpid(pid, 0)
    time.sleep(0.2)
with diagnostic.diagnose(config()):
    pid = os.fork()
    if pid:
        in_parent(pid)
    else:
        in_child()
""",
        tmp_path / "d",
    )
    assert code == 0
    assert err.count("Current thread") == 1
    assert "in in_child" in err
    assert "in in_parent" not in err


def test_a_reader_of_stderr_that_stops_does_not_stop_the_job(tmp_path: Path) -> None:
    job = Job(
        """
with diagnostic.diagnose(config()):
    for _ in range(1000):
        raise_signal(signal.SIGUSR1)
    output("goes on")
os._exit(0)
""",
        tmp_path / "d",
    )
    assert job.line() == "goes on"
    job.kill()


@pytest.mark.parametrize(
    ("program", "is_stuck_after"),
    [("time.sleep(100)", 0.6), ("while True: pass", 3.1)],
)
def test_a_job_counts_as_stuck_later_while_its_threads_run(program: str, is_stuck_after: float) -> None:
    command = [sys.executable, "-c", f"import time; print(flush=True)\n{program}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    try:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: state() == ("R" if "while" in program else "S"))  # It may still be about to sleep.
        silence = StuckCheck(process.pid)
        silence.start(0.0)
        moments = [0.05 * number for number in range(100)]
        stuck = []
        for now in moments:
            time.sleep(0.005)
            stuck.append(silence.is_stuck(now))
        assert moments[stuck.index(True)] == pytest.approx(is_stuck_after, abs=0.15)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state() == "T")
        assert not any(silence.is_stuck(10 + now) for now in moments)
    finally:
        process.kill()
        process.communicate()


def test_a_helper_ends_with_its_block_and_is_not_a_child_of_the_job(tmp_path: Path) -> None:
    job = Job(
        """
with diagnostic.diagnose(config()):
    wait_for_helper()
    try:
        output(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        output("no child")
    input()
input()
""",
        tmp_path / "d",
    )
    assert job.line() == "no child"
    wait_until(lambda: _helpers())
    job.go_on()
    wait_until(lambda: not _helpers())
    job.go_on()
    assert job.end() == (0, "", "")


def test_a_block_that_ends_while_its_helper_is_being_started_says_nothing(tmp_path: Path) -> None:
    program = """
from ml_diagnostics_common import sidecar

begun, left, over = threading.Event(), threading.Event(), threading.Event()

class Late(sidecar.Sidecar):
    def __init__(self, *arguments, **options):
        begun.set()
        left.wait()
        try:
            super().__init__(*arguments, **options)
        finally:
            threading.Timer(0.2, over.set).start()

sidecar.Sidecar = Late
with diagnostic.diagnose(config()):
    begun.wait()
left.set()
over.wait()
"""
    assert run(program, tmp_path) == (0, "", "")


def test_a_helper_ends_with_its_block_though_a_forked_child_lives(tmp_path: Path) -> None:
    job = Job(
        """
with diagnostic.diagnose(config()):
    wait_for_helper()
    child = os.fork()
    if not child:
        time.sleep(300)
        os._exit(0)
    output("forked")
    input()
input()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
""",
        tmp_path / "d",
    )
    assert job.line() == "forked"
    wait_until(lambda: _helpers())
    job.go_on()
    wait_until(lambda: not _helpers())
    job.go_on()
    assert job.end()[0] == 0


def test_a_helper_keeps_no_file_of_the_job_open(tmp_path: Path) -> None:
    job = Job(
        """
from cloud_tpu_diagnostics._collect import blocks
os.dup2(os.open("/dev/null", os.O_RDWR), 77, inheritable=True)  # As C libraries open files.
with diagnostic.diagnose(config()):
    wait_for_helper()
    output("started")
    input()
""",
        tmp_path / "d",
    )
    assert job.line() == "started"
    wait_until(lambda: _helpers())
    wait_until(lambda: all(not Path(f"/proc/{each}/fd/77").is_symlink() for each in _helpers()))
    job.go_on()
    assert job.end()[0] == 0


def _helpers() -> list[str]:
    """Return the helper processes of this test's jobs."""
    module = b"ML_DIAGNOSTICS_SIDECAR=cloud_tpu_diagnostics._companion.requests\0"
    folder = f"ML_DIAGNOSTICS_DIR={os.environ['ML_DIAGNOSTICS_DIR']}\0".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if module in environment and folder in environment:
            found.append(name)
    return found


class _Job(Job):
    """A job that writes its stderr to a file: a pipe that is read only at the end would be full."""

    def __init__(self, program: str, folder: Path, target: str) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / "stderr"
        program = f"os.dup2(os.open({str(self._path)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)\n{program}"
        super().__init__(program, folder / "d", target)

    def stderr(self) -> str:
        return self._path.read_text()

    def kill(self) -> str:
        super().kill()
        return self.stderr()


def test_a_request_just_before_the_end_of_a_block_is_answered(tmp_path: Path) -> None:
    program = """
without_companion()
for _ in range(500):
    with diagnostic.diagnose(config(cloud=True)):
        raise_signal(signal.SIGUSR1)
"""
    assert run(program, tmp_path)[0] == 0
    (file,) = tmp_path.glob("stack_trace_*")
    assert file.read_text().count("Current thread") == 500


_DUMP = b'Stack (most recent call first):\n  File "job.py", line 10 in work\n  File "<string>", line 3 in <module>\n'


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 31, 32, 33, 200])
def test_text_of_faulthandler_in_pieces_is_not_taken_for_signals(piece_bytes: int) -> None:
    data = bytes([signal.SIGTERM]) + _DUMP + bytes([signal.SIGUSR1, 34, 64]) + _DUMP + bytes([signal.SIGUSR1])
    signals = SignalsAmidText(clock=lambda: 0.0)
    pieces = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]
    assert b"".join(map(signals.numbers, pieces)) == bytes(
        [signal.SIGTERM, signal.SIGUSR1, 34, 64, signal.SIGUSR1],
    )


def test_a_dump_that_ends_amid_a_line_hides_no_later_signal() -> None:
    now = [0.0]
    signals = SignalsAmidText(clock=lambda: now[0])
    assert signals.numbers(b"Stack (most") == b""
    now[0] = 2.0
    assert signals.numbers(bytes([signal.SIGUSR1])) == bytes([signal.SIGUSR1])
