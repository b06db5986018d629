"""The output of a job under `run`: all of it is passed on, and no reader can stop or end the job."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics._console.memory import MOST_BYTES
from cloud_tpu_diagnostics._console.segments import SEGMENT_BYTES, Segments
from cloud_tpu_diagnostics.console_files import console_files
from cloud_tpu_diagnostics.entries import CONSOLE, JOB_ENDED, SIGNAL, SIGTERM_HANDLER

from ..waiting import LONG_SECONDS, wait_until
from .accompanied_jobs import _HEAD, Job, of_kind, output_bytes_in_memory
from .test_hold import children_of
from .test_run import _RUN, run

_PRINTED_BYTES = 65 * 2**20

_PRINT_MUCH = f"""
import hashlib, os, sys
digest, left = hashlib.sha256(), {_PRINTED_BYTES}
while left:
    block = os.urandom(min(left, 65536))
    digest.update(block)
    left -= len(block)
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
print(digest.hexdigest(), file=sys.stderr)
"""

_PRINT_ON = """
import pathlib, sys, time
for line in range(4000):
    print(f"line {line} " + "x" * 1000, flush=True)
pathlib.Path(sys.argv[1]).touch()
"""


def console(occasion: str = "end") -> dict[str, str]:
    """Return the last lines that were recorded, by stream."""
    return {found["stream"]: found["message"] for found in of_kind(CONSOLE) if found["occasion"] == occasion}


def test_all_bytes_are_passed_on_and_the_last_ones_are_kept() -> None:
    process = subprocess.Popen(
        [*_RUN, sys.executable, "-c", _PRINT_MUCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    digest, received = hashlib.sha256(), 0
    while block := os.read(process.stdout.fileno(), 2**20):
        digest.update(block)
        received += len(block)
    printed = process.stderr.read().decode()
    assert process.wait(LONG_SECONDS) == 0
    process.stdout.close()
    process.stderr.close()
    assert received == _PRINTED_BYTES
    assert printed == f"{digest.hexdigest()}\n"
    assert console()["err"] == printed


@pytest.mark.timing
def test_65_mb_of_lines_take_at_most_8_mb_of_memory() -> None:
    lines = """
import time
for line in range(65536):
    print('x' * 999, flush=True)
    if line % 1024 == 0:
        time.sleep(0.01)  # 100 MB a second: on a machine with other work, each process waits for its turn.
"""
    most_bytes = 0
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader,
        subprocess.Popen([*_RUN, sys.executable, "-c", lines], stdout=reader.stdin) as process,
    ):
        while process.poll() is None:
            most_bytes = max(most_bytes, output_bytes_in_memory(process.pid))
            time.sleep(0.01)
    assert 0 < most_bytes <= 8 * 2**20


def test_a_job_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    job = [*_RUN, sys.executable, "-c", _PRINT_ON, str(tmp_path / "done")]
    with subprocess.Popen(job, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.read(4)
        process.stdout.close()
        assert process.wait(LONG_SECONDS) == 0
    assert (tmp_path / "done").exists()
    assert console()["out"].splitlines()[-1].startswith("line 3999 ")


def test_a_job_does_not_wait_for_a_reader_that_has_stopped(tmp_path: Path) -> None:
    job = [*_RUN, sys.executable, "-c", _PRINT_ON, str(tmp_path / "done")]
    with subprocess.Popen(job, stdout=subprocess.PIPE, bufsize=0) as process:
        wait_until(lambda: (tmp_path / "done").exists())
        assert process.stdout is not None
        assert len(process.stdout.read().splitlines()) == 4000
        assert process.wait(LONG_SECONDS) == 0


def test_a_full_disk_does_not_end_a_job_that_prints_to_it(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        job = [*_RUN, sys.executable, "-c", _PRINT_ON, str(tmp_path / "done")]
        assert subprocess.run(job, stdout=full, check=False, timeout=LONG_SECONDS).returncode == 0
    assert (tmp_path / "done").exists()
    assert "line 3999 " in console()["out"]


def test_a_job_outlives_the_process_that_passes_its_output_on(tmp_path: Path) -> None:
    program = (
        _HEAD
        + """
start()
report("ready")
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.01)
for line in range(2000):
    report(f"line {line}")
time.sleep(5)  # The companion checks each second that it has to record the end.
sys.exit(7)
"""
    )
    launcher = "import os, sys; os.execv(sys.argv[1], [sys.argv[1], *sys.argv[2:], str(os.getpid())])"
    job = [sys.executable, "-c", program, str(tmp_path / "trace")]
    wrapped = [sys.executable, "-c", launcher, *_RUN, *job]
    with subprocess.Popen(wrapped, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    wait_until(lambda: bool(of_kind(JOB_ENDED)))
    assert [found["exit_code"] for found in of_kind(JOB_ENDED)] == [7]
    wait_until(lambda: "out" in console())
    assert console()["out"].splitlines()[-1] == "line 1999"


def test_a_terminal_remains_a_terminal_and_is_not_recorded() -> None:
    control, terminal = pty.openpty()
    job = "import os; print(os.isatty(1), os.isatty(2))"
    done = subprocess.run([*_RUN, sys.executable, "-c", job], stdout=terminal, stderr=terminal, check=True)
    assert done.returncode == 0
    assert os.read(control, 100) == b"True True\r\n"
    os.close(control)
    os.close(terminal)
    assert of_kind(CONSOLE) == []


def test_stdout_and_stderr_in_one_file_keep_their_order(tmp_path: Path) -> None:
    lines = "import os\nfor n in range(500): os.write(1 + n % 2, b'%d\\n' % n)"
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([*_RUN, sys.executable, "-c", lines], stdout=log, stderr=log, check=True, timeout=LONG_SECONDS)
    expected = "".join(f"{n}\n" for n in range(500))
    assert (tmp_path / "log").read_text() == expected
    assert console() == {"out+err": expected}


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_closed_for_the_job(tmp_path: Path, redirection: str) -> None:
    shown = tmp_path / "shown"
    program = f"import sys; open({str(shown)!r}, 'w').write(str([each is None for each in (sys.stdout, sys.stderr)]))"
    for words in ([], _RUN):
        command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words, sys.executable, "-c", program]
        subprocess.run(command, check=True, capture_output=True, timeout=LONG_SECONDS)
        assert shown.read_text() == str([redirection != "2>&-", "2>&-" in redirection])


def test_a_crash_loses_no_line() -> None:
    done = run(sys.executable, "-c", "import os\nprint('last words')\nos.abort()")
    assert done.stdout == "last words\n"
    assert console()["out"] == "last words\n"


def test_a_child_that_opens_the_output_again_may_print_too() -> None:
    done = run("sh", "-c", "echo first; sleep 0.3; echo second > /dev/stdout; echo third")
    assert done.stdout.splitlines() == ["first", "second", "third"]


def test_the_last_megabytes_are_in_private_files() -> None:
    run("sh", "-c", "echo 'step 1'; echo careful >&2")
    folder = Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "console"
    found = {re.sub(r".*-\d+", "", file.name): file for file in folder.iterdir()}
    times = [found[name].read_text().split() for name in (".out.times", ".err.times")]
    assert [words[0] for words in times] == ["7", "8"]
    texts = {name: file.read_text() for name, file in found.items() if not name.endswith(".times")}
    assert texts == {".out": "step 1\n", ".err": "careful\n"}
    assert {file.stat().st_mode & 0o777 for file in found.values()} == {0o600}


def test_it_is_known_by_when_each_line_was_printed() -> None:
    """In the entry of the end, and in the files."""
    before_ns = time.time_ns()
    # Each print follows some time after the one before was seen.
    job = """
import glob, os, sys, time
def print_and_wait(text, position):
    os.write(1, text)
    while f"{position} " not in "".join(open(path).read() for path in glob.glob(f"{sys.argv[1]}/*.out.times")):
        time.sleep(0.01)
    time.sleep(0.6)
print_and_wait(b"one\\ntwo\\n", 8)
print_and_wait(b"three\\n", 14)
os.write(1, b"four")
"""
    run(sys.executable, "-c", job, str(Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "console"))
    (entry,) = of_kind(CONSOLE)
    assert [lines for lines, _ in entry["times"]] == [2, 3, 4]
    times = [time_ns for _, time_ns in entry["times"]]
    assert before_ns < times[0]
    assert all(later - earlier >= 0.3 * 10**9 for earlier, later in itertools.pairwise(times))
    (file,) = (file for file in console_files() if file.stream == "out")
    printed = file.read()
    assert printed.data == b"one\ntwo\nthree\nfour"
    assert [position for position, _ in printed.times] == [8, 14, 18]
    assert file.read(10).data == b"three\nfour"
    assert [position for position, _ in file.read(10).times] == [6, 10]
    assert file.read(after=printed.end).data == b""


def test_old_files_are_removed_but_none_of_a_job_that_runs_however_little_it_prints(tmp_path: Path) -> None:
    folder = tmp_path / "console"
    silent = Segments(folder / "pod-of-another-node-7.out")  # Known by its lock: no process here has its number.
    here, ended = os.uname().nodename, subprocess.Popen(["true"])
    ended.wait()
    kept = [f"{here}-{os.getpid()}.err", f"{here}-{os.getpid()}.err.1", "pod-of-another-node-7.out.1"]
    for name in (*kept, f"{here}-{ended.pid}.out", "pod-of-another-node-8.out", "pod-of-another-node-8.out.times"):
        (folder / name).touch()
    week_ago = time.time() - 7 * 86_400 - 60
    started = time.time() - 8 * 86_400
    for path in folder.iterdir():
        os.utime(path, (week_ago, week_ago))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cloud_tpu_diagnostics._console.segments.process_started_ns", _started_of(started))
        Segments(folder / "new-1.out").close()
    found = {path.name for path in folder.iterdir() if path.stat().st_mtime < time.time() - 86_400}
    assert found == {*kept, "pod-of-another-node-7.out", "pod-of-another-node-7.out.times"}
    silent.close()
    Segments(folder / "new-2.out").close()  # This process has started after the last write: not the owner.
    assert not [path for path in folder.iterdir() if path.stat().st_mtime < time.time() - 86_400]


def _started_of(started: float) -> Callable[[int], int | None]:
    """Return the clock of a kernel on which this process has started then, and no other process runs."""
    return lambda pid: int(started * 1e9) if pid == os.getpid() else None


def test_two_segments_of_8_mib_hold_the_last_megabytes(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "console" / "host-1.out")
    written = b"".join(f"line {number} {'x' * 1000}\n".encode() for number in range(22_000))
    for start in range(0, len(written), 2**20):
        segments.append(written[start : start + 2**20])
    segments.close()
    (file,) = console_files(tmp_path)
    printed = file.read()
    assert written.endswith(printed.data)
    assert printed.times[-1][0] == len(printed.data)
    newer, older = (tmp_path / "console" / name for name in ("host-1.out", "host-1.out.1"))
    kept = older.read_bytes() + newer.read_bytes()
    assert written.endswith(kept)
    assert older.stat().st_size == SEGMENT_BYTES == 8 * 2**20
    assert [path.stat().st_mode & 0o777 for path in (newer.parent, newer, older)] == [0o700, 0o600, 0o600]


def test_what_a_full_disk_does_not_take_is_left_out_and_counted(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is a disk that is full at a size, and has space again when it is raised."""
    program = f"""
import resource, signal, sys
from pathlib import Path
from cloud_tpu_diagnostics._console.segments import Segments
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
segments = Segments(Path({str(tmp_path / "host-1.out")!r}))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
segments.append(b"first\\n")
limit(10)
segments.append(b"second\\n")
segments.append(b"third\\n")
limit(30)
segments.append(b"fourth\\n")
limit(hard)
segments.append(b"fifth\\n")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG_SECONDS)
    kept = (tmp_path / "host-1.out").read_text()
    assert kept == "first\nseco\n[16 bytes are missing here: they could not be written]\nfifth\n"


def test_a_link_in_place_of_a_segment_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "host-1.out").symlink_to(tmp_path / "elsewhere")
    Segments(tmp_path / "host-1.out").append(b"text")
    assert not (tmp_path / "elsewhere").exists()


_PRINT_80_MIB = "for _ in range(80): os.write(1, b'x' * (2**20 - 1) + b'\\n')"


def test_of_output_that_nothing_reads_64_mib_stay_in_memory_and_the_rest_is_counted(tmp_path: Path) -> None:
    done = tmp_path / "done"
    job = f"import os, sys\n{_PRINT_80_MIB}\nopen({str(done)!r}, 'w').close()\nsys.stdin.read()"
    with subprocess.Popen(
        [*_RUN, sys.executable, "-c", job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        wait_until(lambda: done.exists() and 60 * 2**20 < output_bytes_in_memory(process.pid) <= MOST_BYTES + 2**16)
        process.stdin.close()
        received = bytearray()
        while block := os.read(process.stdout.fileno(), 2**20):
            received += block
        assert process.wait(LONG_SECONDS) == 0
    found = re.search(rb"\n\[([\d,]+) bytes of output were dropped", received)
    assert found is not None
    (dropped,) = (entry["dropped_bytes"] for entry in of_kind(CONSOLE))
    assert int(found[1].replace(b",", b"")) == dropped
    assert received.count(b"x") + received.count(b"\n") - 2 + dropped >= 80 * 2**20


def test_the_companion_limits_the_memory_once_nothing_passes_the_output_on(tmp_path: Path) -> None:
    program = (
        _HEAD
        + f"""
start()
report(os.getpid())
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.01)
{_PRINT_80_MIB}
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
"""
    )
    launcher = "import os, sys; os.execv(sys.argv[1], [*sys.argv[1:-1], str(os.getpid()), sys.argv[-1]])"
    job = [sys.executable, "-c", program, str(tmp_path / "trace"), str(tmp_path / "end")]
    with subprocess.Popen([sys.executable, "-c", launcher, *_RUN, *job], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = Path(f"/proc/{int(process.stdout.readline())}/fd/1")
        process.kill()
    wait_until(lambda: output.stat().st_size > 80 * 2**20)
    wait_until(lambda: output.stat().st_blocks * 512 <= MOST_BYTES + 2**16)
    (tmp_path / "end").touch()
    wait_until(lambda: bool(of_kind(JOB_ENDED)))


# --- Every combination of what can happen to the wrapper and to the reader ----------------------------


_PRINT_TO_THE_END = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
print("ready", flush=True)
while not (folder / "go").exists():
    time.sleep(0.005)
for line in range(300):
    print(f"line {line} " + "x" * 1000, flush=True)
    print(f"line {line}", file=sys.stderr, flush=True)
(folder / "done").touch()
"""
_WRAPPERS = ("lives", "killed", "stopped")
_READERS = ("reads", "killed", "stopped", "disk full")


@pytest.mark.parametrize("wrapper_is", _WRAPPERS)
@pytest.mark.parametrize("reader_is", _READERS)
def test_a_job_prints_to_its_end_whatever_happens_to(tmp_path: Path, wrapper_is: str, reader_is: str) -> None:
    job = [*_RUN, sys.executable, "-c", _PRINT_TO_THE_END, str(tmp_path)]
    with ExitStack() as stack:  # If the test fails, it waits for none of them.
        stack.callback((tmp_path / "go").touch)
        if reader_is == "disk full":
            output: Any = stack.enter_context(Path("/dev/full").open("wb", buffering=0))
            reader = None
        else:
            reader = stack.enter_context(
                subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            )
            stack.callback(reader.kill)
            output = reader.stdin
        wrapper = stack.enter_context(subprocess.Popen(job, stdout=output, stderr=subprocess.DEVNULL, bufsize=0))
        stack.callback(wrapper.kill)
        output.close()
        if reader is not None:
            assert reader.stdout is not None
            assert reader.stdout.read(6) == b"ready\n"
        wait_until(lambda: bool(children_of(wrapper.pid)))
        if reader is not None and reader_is != "reads":
            reader.send_signal(signal.SIGKILL if reader_is == "killed" else signal.SIGSTOP)
        if wrapper_is != "lives":
            wrapper.send_signal(signal.SIGKILL if wrapper_is == "killed" else signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until(lambda: (tmp_path / "done").exists())
        for process in (reader, wrapper):
            if process is not None:
                process.send_signal(signal.SIGCONT)
        if reader is not None and reader_is != "killed":
            assert reader.stdout is not None
            read = reader.stdout.read() or b""
            assert wrapper_is == "killed" or read.count(b"\n") == 300
        if wrapper_is != "killed":
            assert wrapper.wait(LONG_SECONDS) == 0
            assert console()["out"].splitlines()[-1].startswith("line 299 ")


@pytest.mark.parametrize(
    ("option", "variable"),
    [(["--no-console"], {}), ([], {"ML_DIAGNOSTICS_CONSOLE": "off"})],
    ids=["option", "variable"],
)
def test_nothing_is_recorded_if_the_user_does_not_want_it(option: list[str], variable: dict[str, str]) -> None:
    command, environment = [*_RUN[:-1], *option, "--", "echo", "private"], {**os.environ, **variable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=LONG_SECONDS)
    assert done.stdout == "private\n"
    assert of_kind(CONSOLE) == []
    assert console_files() == []


def test_secrets_are_removed_from_the_record_and_not_from_the_output() -> None:
    line = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"
    done = run("echo", line)
    assert done.stdout == f"{line}\n"
    assert "hf_abcdef" not in console()["out"]


def test_a_log_file_is_recorded_without_run(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    with log.open("w") as stdout:
        job = Job("report(start().pid); report('last words'); input(); os._exit(3)", tmp_path / "trace", stdout=stdout)
        wait_until(lambda: log.read_text().endswith("last words\n"))
        files = Path(f"/proc/{log.read_text().split()[0]}/fd")
        wait_until(lambda: any(str(file.readlink()) == str(log) for file in files.iterdir()))
        job.go_on()
        job.process.wait(LONG_SECONDS)
    wait_until(lambda: "out" in console())
    assert console()["out"] == log.read_text()


def test_a_hang_has_the_last_lines_before_it(tmp_path: Path) -> None:
    program = """
from ml_diagnostics_common.progress import ProgressPage
page = ProgressPage.create()
hang = {"enabled": True, "step_floor_seconds": 1, "startup_floor_seconds": 1, "snapshots": 1,
        "snapshot_interval_seconds": 0.1}
start(progress_path=str(page.path), hang=hang)
report("waiting for batch 7")
page.publish("step", 1)
input()
"""
    with (tmp_path / "log").open("w") as log:
        job = Job(program, tmp_path / "trace", stdout=log)
        wait_until(lambda: "out" in console("hang"))
        assert console("hang")["out"] == "waiting for batch 7\n"
        job.go_on()
        job.process.wait(LONG_SECONDS)


def test_a_signal_that_asks_the_job_to_end_is_recorded_with_its_sender() -> None:
    process = subprocess.Popen([*_RUN, "sh", "-c", "echo ready; exec sleep 60"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(LONG_SECONDS) == -signal.SIGTERM
    process.stdout.close()
    (found,) = of_kind(SIGNAL)
    assert (found["signal"], found["sender_pid"], found["sender_uid"]) == ("SIGTERM", os.getpid(), os.getuid())
    assert found["message"] == f"process {os.getpid()} (user {os.getuid()}) sent SIGTERM to the job"


def test_each_handler_of_sigterm_is_noted_in_its_order() -> None:
    program = """
import ctypes, json, os, signal
from cloud_tpu_diagnostics._companion.sigterm import SigtermHandlers
from cloud_tpu_diagnostics._signals import sigterm_handler
handlers = SigtermHandlers(os.getpid())
def check(now):
    handlers.learn(sigterm_handler())
    handlers.check(now)
native = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
def save_and_end(number, frame): pass
check(0)
ctypes.CDLL(None).signal(15, native)
check(10)
check(20)
signal.signal(signal.SIGTERM, save_and_end)
check(30)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
check(40)
print(json.dumps([[each["handler"], each.get("function")] for each in handlers.take()]))
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=LONG_SECONDS)
    assert json.loads(done.stdout) == [["c", None], ["python", "__main__.save_and_end"], ["ignored", None]]


def test_a_handler_of_sigterm_in_python_is_recorded_with_the_end(tmp_path: Path) -> None:
    program = """
def save_and_end(number, frame): sys.exit(0)
signal.signal(signal.SIGTERM, save_and_end)
start().leave("clean")
"""
    assert Job(program, tmp_path / "trace").end()[0] == 0
    wait_until(lambda: bool(of_kind(JOB_ENDED)))
    (found,) = of_kind(SIGTERM_HANDLER)
    assert (found["handler"], found["function"]) == ("python", "__main__.save_and_end")
    assert found["time_ns"] < of_kind(JOB_ENDED)[0]["ended_ns"] + 10**9
