"""The companion of a real job: its entries, and that it never affects the job."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion import CompanionSettings
from cloud_tpu_diagnostics._companion import job as companion_job
from cloud_tpu_diagnostics._companion import output as output_module
from cloud_tpu_diagnostics._companion.main import LONGEST_END_SECONDS
from cloud_tpu_diagnostics._companion.output import ConsoleOutput
from cloud_tpu_diagnostics._companion.requests import UnansweredRequests
from cloud_tpu_diagnostics._dumps.parser import parse_dumps
from cloud_tpu_diagnostics.entries import DUMP, JOB_ENDED, LOG_ID, SNAPSHOT
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader

from ..waiting import LONG_SECONDS, is_alive, run_program, wait_until
from .accompanied_jobs import Job, ending, of_kind, payloads

HEADER = "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every 600 seconds.\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "stack_trace_of_job.txt"


def test_a_dump_of_the_timer_has_its_header_while_the_gil_is_held(trace: Path) -> None:
    job = Job(
        """
companion = start()
faulthandler.dump_traceback_later(0.3, repeat=True, file=companion.timer_descriptor)
ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)  # Holds the GIL.
faulthandler.cancel_dump_traceback_later()
companion.leave("clean")
""",
        trace,
    )
    wait_until(lambda: trace.read_text().count("Timeout (") >= 3)
    job.go_on()
    assert job.end() == (0, "", "")
    ending()
    text = trace.read_text()
    dumps = text.count("Timeout (")
    assert text.count(HEADER + "Timeout (") == dumps >= 3
    assert [dump["trigger"] for dump in of_kind(DUMP)] == ["timer"] * dumps
    assert "".join(dump["message"] for dump in of_kind(DUMP)) == text
    assert all("<module>" in dump["message"] for dump in of_kind(DUMP))


def test_dumps_of_a_signal_and_a_fault_are_entries_that_differ_from_the_timers(trace: Path) -> None:
    job = Job(
        """
companion = start()
faulthandler.dump_traceback_later(0.2, file=companion.timer_descriptor)
input()
os.kill(os.getpid(), signal.SIGUSR1)
input()
ctypes.string_at(0)
""",
        trace,
    )
    for count in (1, 2):
        wait_until(lambda count=count: len(of_kind(DUMP)) == count)  # type: ignore[misc]
        job.go_on()
    job.end()
    ending()
    assert [dump["trigger"] for dump in of_kind(DUMP)] == ["timer", "signal", "fault"]
    assert of_kind(DUMP)[2]["headline"] == "Fatal Python error: Segmentation fault"


def test_above_a_hundred_threads_the_main_thread_is_in_the_entry_as_well(trace: Path) -> None:
    job = Job(
        """
for _ in range(130):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
def stand_here():
    faulthandler.dump_traceback_later(0.2, file=companion.timer_descriptor)
    input()
companion = start()
stand_here()
os._exit(0)
""",
        trace,
    )
    wait_until(lambda: bool(of_kind(DUMP)))
    job.go_on()
    job.end()
    ending()
    (dump,) = of_kind(DUMP)
    assert (dump["threads"], dump["is_cut"]) == (101, True)
    assert "in stand_here" in dump["message"]


def test_entries_of_snapshots_have_the_time_since_which_each_stack_is_the_same(trace: Path) -> None:
    job = Job(
        """
companion = start()
frames = ["psum (collectives.py:88)", "<module> (train.py:3)"]
group = {"threads": 1, "main": True, "names": ["MainThread"], "frames": frames}
for number in range(3):
    companion.send({"kind": "snapshot", "time_ns": number, "threads": 1, "groups": [group]})
companion.leave("clean")
""",
        trace,
    )
    assert job.end() == (0, "", "")
    ending()
    found = of_kind(SNAPSHOT)
    assert [snapshot["groups"][0]["unchanged_snapshots"] for snapshot in found] == [0, 1, 2]
    assert "waits in psum (collectives.py:88)" in found[2]["message"]
    assert "the same for 2 snapshots" in found[2]["message"]
    assert found[2]["interval_seconds"] == 600


def test_a_long_dump_is_split_over_entries(trace: Path) -> None:
    job = Job(
        """
companion = start()
frames = "".join(f'  File "/job/{"x" * 400}.py", line {n} in f\\n' for n in range(1000))
os.write(trace, ("Thread 0x00007f (most recent call first):\\n" + frames).encode())
time.sleep(1)
companion.leave("clean")
""",
        trace,
    )
    assert job.end() == (0, "", "")
    ending()
    found = of_kind(DUMP)
    assert [(part["part"], part["parts"], part["dump"]) for part in found] == [(1, 3, 1), (2, 3, 1), (3, 3, 1)]
    assert "".join(part["message"] for part in found) == trace.read_text()


def test_the_trace_file_has_a_cap_and_reports_it_once_while_entries_continue(trace: Path) -> None:
    job = Job(
        """
companion = start(most_bytes=1000)
faulthandler.dump_traceback_later(0.1, repeat=True, file=companion.timer_descriptor)
input()
faulthandler.cancel_dump_traceback_later()
companion.leave("clean")
""",
        trace,
    )
    wait_until(lambda: "has reached its limit" in trace.read_text())
    wait_until(lambda: len(of_kind(DUMP)) > trace.read_text().count("Timeout ("))
    job.go_on()
    assert job.end() == (0, "", "")
    ending()
    text = trace.read_text()
    assert text.count("has reached its limit of 1000 bytes") == 1
    assert len(of_kind(DUMP)) > text.count("Timeout (")


def test_without_a_file_dumps_are_written_to_the_console_each_after_its_header(trace: Path) -> None:
    job = Job(
        """
companion = start(trace_path=None)
faulthandler.dump_traceback_later(0.2, file=companion.timer_descriptor)
input()
companion.leave("clean")
""",
        trace,
    )
    wait_until(lambda: bool(of_kind(DUMP)))
    job.go_on()
    code, _, stderr = job.end()
    assert code == 0
    assert stderr.startswith(HEADER + "Timeout (")
    (dump,) = of_kind(DUMP)
    assert dump["message"] == stderr


def test_text_that_resembles_a_secret_is_redacted(trace: Path) -> None:
    job = Job(
        """
companion = start()
os.write(trace, b'Thread 0x00007f (most recent call first):\\n  File "/api_key=hunter2hunter2", line 1 in f\\n')
time.sleep(0.5)
companion.leave("clean")
""",
        trace,
    )
    assert job.end() == (0, "", "")
    ending()
    (dump,) = of_kind(DUMP)
    assert "[REDACTED]" in dump["message"]
    assert "hunter2" not in str(payloads())


def test_an_index_that_jax_learns_in_the_block_is_a_label_from_then_on(trace: Path) -> None:
    job = Job(
        """
import types
companion = start()
state = types.SimpleNamespace(client=object(), process_id=3)
sys.modules["jax._src.distributed"] = types.SimpleNamespace(global_state=state)
time.sleep(1.5)
companion.leave("clean")
""",
        trace,
    )
    assert job.end() == (0, "", "")
    ending()
    (entry,) = (entry for batch in JournalReader(LOG_ID, root=diagnostics_directory()).read_new() for entry in batch)
    assert entry.context.labels["process_index"] == "3"
    assert entry.context.labels["pid"] == str(job.process.pid)


# --- The job never feels it ---------------------------------------------------------------------------


def test_a_job_notices_that_its_companion_was_killed_and_continues(trace: Path) -> None:
    job = Job(
        """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
companion = start()
os.kill(companion.pid, signal.SIGKILL)
while {"kind": "ended"} not in messages:
    time.sleep(0.01)
assert not companion._sidecar.is_connected
faulthandler.dump_traceback_later(0.01, repeat=True, file=companion.timer_descriptor)
companion.send({"kind": "snapshot", "groups": ["x" * 500_000]})
time.sleep(0.5)
faulthandler.cancel_dump_traceback_later()
companion.leave("clean")
report(messages)
""",
        trace,
    )
    assert job.end() == (0, "[{'kind': 'ended'}]\n", "")


@pytest.mark.timing
def test_a_companion_that_is_stopped_does_not_delay_the_job(trace: Path) -> None:
    job = Job(
        """
companion = start()
os.kill(companion.pid, signal.SIGSTOP)
started = time.monotonic()
for _ in range(100):
    companion.send({"kind": "snapshot", "groups": ["x" * 100_000]})
companion.leave("clean")
report(time.monotonic() - started, companion.pid)
""",
        trace,
    )
    seconds, pid = job.line().split()
    try:
        assert job.end() == (0, "", "")
        assert float(seconds) < 5
    finally:
        os.kill(int(pid), signal.SIGKILL)


def test_a_job_that_waits_for_all_its_children_does_not_wait_for_its_companion(trace: Path) -> None:
    job = Job(
        """
companion = start()
if not os.fork():
    os._exit(0)
try:
    while True:
        os.wait()
except ChildProcessError:
    companion.leave("clean")
""",
        trace,
    )
    assert job.end() == (0, "", "")
    assert ending()["how"] == "clean"


def test_a_job_that_closes_all_descriptors_keeps_its_own_files_under_their_numbers(trace: Path) -> None:
    job = Job(
        """
companion = start()
numbers = [companion._sidecar._socket.number(), companion.timer_descriptor]
os.closerange(3, 1024)
file = os.open(path + ".its", os.O_WRONLY | os.O_CREAT)
files = [os.dup2(file, number) for number in numbers]
assert not companion._sidecar.is_connected
companion.send({"kind": "snapshot"})
time.sleep(1.2)
companion.leave("clean")
for file in files:
    os.fstat(file)
assert os.path.getsize(path + ".its") == 0
try:
    companion.timer_descriptor
except OSError:
    report("closed")
""",
        trace,
    )
    assert job.end() == (0, "closed\n", "")
    assert ending()["exit_code"] == 0


def test_a_forked_child_sends_nothing_for_its_parent_and_its_end_is_not_the_jobs(trace: Path) -> None:
    job = Job(
        """
companion = start()
child = os.fork()
if not child:
    companion.send({"kind": "left", "how": "clean"})
    companion.leave("exception", "ValueError")
    assert not companion._sidecar.is_connected
    signal.pause()
report(child)
os.kill(os.getpid(), signal.SIGKILL)
""",
        trace,
    )
    child = int(job.line())
    try:
        assert ending()["signal"] == "SIGKILL"  # Though the child holds all the pipes.
    finally:
        os.kill(child, signal.SIGKILL)
    job.end()


@pytest.mark.timing
def test_a_companion_ends_by_itself_and_not_by_a_signal_to_its_group(trace: Path) -> None:
    job = Job("report(start().pid); input(); os._exit(1)", trace)
    pid = int(job.line())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(pid, number)
    time.sleep(0.2)
    assert is_alive(pid)
    started = time.monotonic()
    job.go_on()
    job.end()
    wait_until(lambda: not is_alive(pid))
    assert time.monotonic() - started < LONGEST_END_SECONDS
    assert [payload["kind"] for payload in payloads()] == [JOB_ENDED]


def test_a_reader_of_the_jobs_output_does_not_wait_for_its_companion(trace: Path) -> None:
    job = Job("report(start().pid)\nos.kill(os.getpid(), signal.SIGSTOP)", trace)
    pid = int(job.line())
    os.kill(pid, signal.SIGSTOP)
    job.process.kill()
    try:
        assert job.end() == (-signal.SIGKILL, "", "")  # To the end of stdout and stderr.
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_companion_that_cannot_be_started_is_an_os_error(trace: Path) -> None:
    job = Job(
        """
sys.executable = "/nonexistent/python"
try:
    CompanionProcess(CompanionSettings(1, None, False), messages.append)
except OSError as error:
    report(type(error).__name__)
""",
        trace,
    )
    assert job.end() == (0, "FileNotFoundError\n", "")


def test_settings_are_the_same_in_the_companion_and_unknown_ones_are_ignored() -> None:
    settings = CompanionSettings(600, "/tmp/x", True, 64, 10, "/tmp/page", {"enabled": True})
    assert CompanionSettings.from_json({**settings._asdict(), "of_tomorrow": 1}) == settings


def test_dumps_of_several_writers_to_one_file_are_parsed_separately(trace: Path) -> None:
    job = Job(
        """
companion = start()
faulthandler.dump_traceback_later(0.2, repeat=True, file=companion.timer_descriptor)
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.05)
while open(path).read().count("Timeout (") < 3:
    time.sleep(0.05)
faulthandler.cancel_dump_traceback_later()
companion.leave("clean")
""",
        trace,
    )
    assert job.end() == (0, "", "")
    ending()
    triggers = [dump["trigger"] for dump in of_kind(DUMP)]
    assert triggers.count("signal") == 20
    assert triggers.count("timer") >= 3
    assert len(parse_dumps(trace.read_text())) >= 23


@pytest.mark.parametrize("kind", ["terminal", "pipe", "socket", "another user's pipe"])
def test_a_console_without_a_reader_does_not_block_the_companion_forever(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "another" in kind:
        monkeypatch.setattr(output_module, "open_nonblocking", lambda _: None)
    if kind == "terminal":
        reader, writer = os.openpty()
    elif "pipe" in kind:
        reader, writer = os.pipe()
    else:
        reader, writer = (end.detach() for end in socket.socketpair())

    def fill() -> None:
        output = ConsoleOutput(os.dup(writer))
        with contextlib.suppress(OSError):
            for _ in range(1000):
                output.append(b"x" * 79 + b"\n" + b"y" * 4096)
        output.close()

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    thread.join(LONG_SECONDS)
    assert not thread.is_alive()
    assert os.get_blocking(writer)
    os.close(reader)
    os.close(writer)


def test_a_console_of_another_user_is_written_to_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "open_nonblocking", lambda _: None)
    reader, writer = os.pipe()
    output = ConsoleOutput(writer)
    text = b"".join(b"line %d\n" % number for number in range(5000))
    output.append(text)
    closing = threading.Thread(target=output.close)
    closing.start()
    read = b""
    while len(read) < len(text):
        read += os.read(reader, 1 << 16)
    closing.join()
    assert read == text
    assert os.fstat(writer).st_rdev == Path(os.devnull).stat().st_rdev  # No reader waits for its end.
    os.close(reader)
    os.close(writer)


def test_after_the_block_a_companion_does_not_wait_for_requests(trace: Path) -> None:
    job = """
import os, socket, sys, types
from cloud_tpu_diagnostics._companion import CompanionSettings, main

wait_readable, waits = main.wait_readable, []
def counted(*arguments):
    waits.append(arguments)
    return wait_readable(*arguments)
main.wait_readable = counted
numbers = [end.detach() for end in (end for _ in range(4) for end in socket.socketpair())]
for number in numbers:
    os.set_blocking(number, False)
wakeups, writer, handling, _, answers, _, timer, _ = numbers
os.write(writer, b"\x0f")  # SIGTERM, which the job never reads.
settings = CompanionSettings(
    interval_seconds=600, trace_path=sys.argv[1], is_shipped=False, is_end_recorded=True, labels={"pid": "1"})
parent = types.SimpleNamespace(
    settings=settings._asdict(), pid=os.getppid(), job=None, is_open=False, descriptor=None,
    descriptors={"wakeups": wakeups, "handling": handling, "answers": answers, "timer": timer}, log=print,
    receive=lambda: [{"kind": "left", "how": "clean", "exception": None, "exit_code": None}],
    forward_logs=lambda: None)
main.Companion(parent).run()
print(len(waits) < 100)
"""
    assert run_program(job, trace) == "True\n"


def test_an_unread_signal_other_than_a_request_does_not_make_it_spin() -> None:
    reader, writer = socket.socketpair()
    handling, begun = socket.socketpair()
    answers, _ = ends = socket.socketpair()
    answers.setblocking(False)
    numbers = {"wakeups": reader.detach(), "handling": handling.detach(), "answers": answers.fileno()}
    watched = [numbers["wakeups"], numbers["handling"]]
    requests = UnansweredRequests(numbers, companion_job.Job(os.getpid(), None), signal.SIGUSR1)
    states: list[tuple[bool, list[int]]] = []

    def step() -> None:
        states.append((requests.step(0.0) is None, requests.descriptors))

    step()
    writer.send(bytes([signal.SIGTERM]))
    step()
    os.read(numbers["wakeups"], 10)
    step()
    writer.close()
    step()
    assert states == [(True, watched), (False, []), (True, watched), (True, [])]
    for end in (begun, *ends, *requests._sockets):
        end.close()
