"""Handlers, faulthandler and its timer are the same before and after a block."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._dumps.parser import Trigger, parse_dumps
from cloud_tpu_diagnostics._stacks.local_processes import choose_signal, find_processes

from ..waiting import wait_until
from .diagnosed_jobs import Job, run


def test_a_signal_after_the_block_does_not_end_the_program(tmp_path: Path) -> None:
    """A user was advised to send it for a stack trace."""
    job = Job("with diagnostic.diagnose(config()): pass\noutput('left')\ninput()\noutput('alive')", tmp_path / "d")
    assert job.line() == "left"
    for _ in range(3):
        job.process.send_signal(signal.SIGUSR1)
    job.go_on()
    assert job.line() == "alive"
    assert job.end()[::2] == (0, "")


def test_a_second_block_answers_the_signal_again(tmp_path: Path) -> None:
    code, _, err = run(
        """
for _ in range(3):
    with diagnostic.diagnose(config()):
        raise_signal(signal.SIGUSR1)
    raise_signal(signal.SIGUSR1)
""",
        tmp_path / "d",
    )
    assert code == 0
    assert err.count("Current thread") == 3


@pytest.mark.parametrize("theirs", ["lambda *_: output('theirs')", "signal.SIG_IGN"])
def test_a_signal_that_is_taken_stays_the_programs(tmp_path: Path, theirs: str) -> None:
    code, out, err = run(
        f"""
logging.basicConfig(level=logging.INFO)
theirs = {theirs}
signal.signal(signal.SIGUSR1, theirs)
with diagnostic.diagnose(config()):
    raise_signal(signal.SIGUSR1)
    raise_signal(signal.SIGUSR2)
assert signal.getsignal(signal.SIGUSR1) is theirs
raise_signal(signal.SIGUSR1)
raise_signal(signal.SIGUSR2)
""",
        tmp_path / "d",
    )
    assert code == 0
    assert out.count("theirs") == (2 if "lambda" in theirs else 0)
    assert "SIGUSR1 is taken: for stack traces at any time, send SIGUSR2 instead." in err
    assert err.count("Current thread") == 1


def test_a_signal_that_a_c_library_has_taken_stays_its_own(tmp_path: Path) -> None:
    """The program's own faulthandler is such a library: `signal.getsignal` does not show its handler."""
    code, _, err = run(
        """
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[2], "w"), all_threads=False)
faulthandler.register(signal.SIGUSR2, file=open(sys.argv[2], "a"), all_threads=False)
logging.basicConfig(level=logging.INFO)
with diagnostic.diagnose(config()):
    raise_signal(signal.SIGUSR1)
raise_signal(signal.SIGUSR2)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert code == 0
    assert "send SIGRTM" in err
    assert "most recent call first" not in err
    assert "most recent call first" in (tmp_path / "theirs").read_text()


def test_a_handler_that_the_program_installs_in_the_block_stays(tmp_path: Path) -> None:
    code, out, err = run(
        """
with diagnostic.diagnose(config()):
    signal.signal(signal.SIGUSR1, lambda *_: output("theirs"))
for _ in range(2):
    raise_signal(signal.SIGUSR1)
    with diagnostic.diagnose(config()):
        raise_signal(signal.SIGUSR1)
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "theirs\n" * 4)
    assert err == "SIGUSR1 is taken: for stack traces at any time, send SIGUSR2 instead.\n"


def test_the_file_names_the_free_signal_for_requests_from_outside(tmp_path: Path) -> None:
    job = Job(
        """
signal.signal(signal.SIGUSR1, lambda *_: output("theirs"))
with diagnostic.diagnose(config(cloud=True)):
    output("in")
    input()
""",
        tmp_path / "d",
    )
    assert job.line() == "in"
    (process,) = find_processes(tmp_path / "d")
    number = choose_signal(process)
    assert number == signal.SIGUSR2
    job.process.send_signal(number)
    wait_until(lambda: "Current thread" in job.trace())
    job.go_on()
    assert job.end()[:2] == (0, "")


def test_a_program_that_takes_the_signal_in_the_block_gets_a_warning_with_the_next_one(tmp_path: Path) -> None:
    job = Job(
        """
without_companion()
def wait_for(sentence):
    while not any(sentence in file.read_text() for file in trace_file.FOLDER.iterdir()):
        time.sleep(0.01)
with diagnostic.diagnose(config(0.2, cloud=True)):
    signal.signal(signal.SIGUSR1, lambda *_: output("theirs"))
    wait_for("INFO: SIGUSR1 is taken: for stack traces at any time, send SIGUSR2 instead.\\n")
    raise_signal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, lambda *_: output("theirs"))
    wait_for("INFO: SIGUSR1 is taken: for stack traces at any time, send SIGRTM")
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
with diagnostic.diagnose(config(cloud=True)):
    wait_for("INFO: SIGUSR1 is free: for stack traces at any time, send SIGUSR1.\\n")
    raise_signal(signal.SIGUSR1)
""",
        tmp_path / "d",
    )
    code, out, err = job.end()
    assert (code, out) == (0, "")
    assert err.count("SIGUSR1 is taken") == 2
    requested = [dump for dump in parse_dumps(job.trace()) if dump.trigger is Trigger.SIGNAL]
    assert ["in raise_signal" in dump.text for dump in requested] == [True, True]


def test_the_programs_own_faulthandler_is_on_again_afterwards(tmp_path: Path) -> None:
    code, _, err = run(
        """
theirs = open(sys.argv[2], "w")
faulthandler.enable(theirs)
with diagnostic.diagnose(config()): pass
assert faulthandler.is_enabled()
ctypes.string_at(0)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert code == -signal.SIGSEGV
    assert err == ""
    assert "Segmentation fault" in (tmp_path / "theirs").read_text()


def test_in_the_block_faults_are_written_to_its_output(tmp_path: Path) -> None:
    _, _, err = run(
        """
theirs = open(sys.argv[2], "w")
faulthandler.enable(theirs)
faulthandler.register(signal.SIGUSR2, file=theirs)
with diagnostic.diagnose(config()): ctypes.string_at(0)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert "Segmentation fault" in err
    assert (tmp_path / "theirs").read_text() == ""


def test_a_faulthandler_with_an_unknown_file_is_left_unchanged(tmp_path: Path) -> None:
    """pytest gives it the number of a file."""
    code, _, err = run(
        """
logging.basicConfig(level=logging.INFO)
theirs = open(sys.argv[2], "w")
faulthandler.enable(theirs.fileno())
faulthandler.register(signal.SIGUSR2, file=theirs)
with diagnostic.diagnose(config()): pass
with diagnostic.diagnose(config()): ctypes.string_at(0)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert code == -signal.SIGSEGV
    assert "Segmentation fault" not in err
    assert "Segmentation fault" in (tmp_path / "theirs").read_text()
    assert err.count("faulthandler was on before diagnose()") == 1


def test_a_faulthandler_that_the_program_turns_on_in_the_block_stays_on(tmp_path: Path) -> None:
    code, _, err = run(
        """
theirs = open(sys.argv[2], "w")
with diagnostic.diagnose(config()): faulthandler.enable(theirs)
ctypes.string_at(0)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert (code, err) == (-signal.SIGSEGV, "")
    assert "Segmentation fault" in (tmp_path / "theirs").read_text()


def test_a_timer_that_the_program_sets_in_the_block_is_its_own(tmp_path: Path) -> None:
    code, _, err = run(
        """
theirs = open(sys.argv[2], "w")
with diagnostic.diagnose(config(0.2)):
    faulthandler.dump_traceback_later(0.6, file=theirs)
    print("set", file=sys.stderr, flush=True)
    time.sleep(0.4)
while "Timeout" not in pathlib.Path(sys.argv[2]).read_text():
    time.sleep(0.01)
""",
        tmp_path / "d",
        str(tmp_path / "theirs"),
    )
    assert code == 0
    assert "Timeout (0:00:00.6" in (tmp_path / "theirs").read_text()
    assert "Timeout" not in err.partition("set\n")[2]


def test_after_the_block_nothing_is_written_any_more(tmp_path: Path) -> None:
    job = Job(
        """
with diagnostic.diagnose(config(0.2)): input()
print("left", file=sys.stderr, flush=True)
time.sleep(0.5)
""",
        tmp_path / "d",
    )
    job.wait_for_dumps()
    job.go_on()
    before, _, after = job.end()[2].partition("left\n")
    assert "Timeout (" in before
    assert after == ""


def test_dumps_do_not_end_a_program_that_runs(tmp_path: Path) -> None:
    """faulthandler's timer alone ends this one with a segmentation fault: it reads stacks that change meanwhile."""
    code, _, _ = run(
        """
def call(levels):
    return levels and call(levels - 1)
program = "def run(levels): return levels and run(levels - 1)"
end = time.monotonic() + 4
without_companion()
with diagnostic.diagnose(config(0.01, cloud=True)):
    while time.monotonic() < end:
        names = {}
        exec(compile(program, str(time.time_ns()), "exec"), names)
        names["run"](20)
        thread = threading.Thread(target=call, args=(10,))
        thread.start()
        thread.join()
""",
        tmp_path / "d",
    )
    assert code == 0
    (file,) = (tmp_path / "d").iterdir()
    assert file.read_text().count("Timeout (") > 20


@pytest.mark.timing
def test_leaving_amid_a_dump_does_not_wait_for_its_end(tmp_path: Path) -> None:
    code, out, _ = run(
        """
import statistics
def deep(levels):
    if levels:
        deep(levels - 1)
    else:
        time.sleep(100)
for _ in range(99):
    threading.Thread(target=deep, args=(90,), daemon=True).start()
from cloud_tpu_diagnostics._collect.timer import Timer
dumps, leaves = [], []
with open(sys.argv[2], "w") as file:
    for _ in range(7):
        timer = Timer(0.02)
        timer.arm(file.fileno())
        time.sleep(timer.due - time.monotonic() + 0.003)
        started = time.perf_counter()
        timer.cancel()
        leaves.append(time.perf_counter() - started)
        started = time.perf_counter()
        faulthandler.dump_traceback(file)
        dumps.append(time.perf_counter() - started)
output(statistics.median(leaves) < 0.6 * statistics.median(dumps))
os._exit(0)
""",
        tmp_path / "d",
        str(tmp_path / "whole"),
    )
    assert (code, out) == (0, "True\n")
    assert "Timeout (" in (tmp_path / "whole").read_text()


def test_counting_the_threads_reads_no_frames(tmp_path: Path) -> None:
    """On Python 3.11 that takes care, and it is done every few seconds."""
    code, out, err = run(
        """
from cloud_tpu_diagnostics._collect import blocks
without_companion()
end = threading.Event()
with diagnostic.diagnose(config()):
    watchdog = blocks._current._watchdog
    sys._current_frames = None
    for more in range(2):
        threads = [threading.Thread(target=end.wait) for _ in range(100 * more)]
        for thread in threads:
            thread.start()
        watchdog.recheck()
        output(watchdog._shows_all)
    end.set()
    for thread in threads:
        thread.join()
    watchdog.recheck()
    output(watchdog._shows_all)
""",
        tmp_path / "d",
    )
    assert (code, out.split()) == (0, ["True", "False", "True"]), err


def test_a_block_leaves_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    code, out, _ = run(
        """
def traces():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
import gc
with diagnostic.diagnose(config()): wait_for_helper()
deadline = time.monotonic() + 20
while traces()[1] > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
gc.collect()
gc.disable()
before = traces()
for number in range(20):
    with diagnostic.diagnose(config()):
        if number in (0, 10): wait_for_helper()
while traces() != before and time.monotonic() < deadline:
    time.sleep(0.01)
output(traces() == before)
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "True\n")
