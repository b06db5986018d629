"""Blocks within blocks, in other threads, and in processes that were forked off in one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._dumps.parser import Trigger, parse_dumps

from .diagnosed_jobs import Job, run


def test_the_last_of_nested_blocks_ends_it(tmp_path: Path) -> None:
    _, out, err = run(
        """
with diagnostic.diagnose(config()):
    with diagnostic.diagnose(config()):
        pass
    output(faulthandler.is_enabled())
    try:
        with diagnostic.diagnose(config()):
            raise ValueError
    except ValueError:
        output(faulthandler.is_enabled())
output(faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert out.split() == ["True", "True", "False"]
    assert err == ""


def test_blocks_of_two_threads_may_overlap(tmp_path: Path) -> None:
    _, out, err = run(
        """
entered, may_leave = threading.Event(), threading.Event()
def other():
    with diagnostic.diagnose(config()):
        entered.set()
        may_leave.wait()
thread = threading.Thread(target=other)
with diagnostic.diagnose(config()):
    thread.start()
    entered.wait()
output(faulthandler.is_enabled())
may_leave.set()
thread.join()
output(faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert (out.split(), err) == (["True", "False"], "")


def test_another_configuration_within_a_block_is_one_warning(tmp_path: Path) -> None:
    _, _, err = run(
        """
with diagnostic.diagnose(config(100)):
    for _ in range(3):
        with diagnostic.diagnose(config(200)):
            pass
""",
        tmp_path / "d",
    )
    assert err.count("that has a different configuration") == 1


def test_a_block_off_the_main_thread_dumps_like_any_other(tmp_path: Path) -> None:
    job = Job(
        """
def work():
    with diagnostic.diagnose(config(0.5)):
        input()
        raise_signal(signal.SIGUSR1)
        input()  # The main thread waits: another writes the dump, a little later.
        ctypes.string_at(0)
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
        tmp_path / "d",
    )
    job.wait_for_dumps()
    job.go_on()
    job.wait_for_stderr("Current thread 0x")
    job.go_on()
    code, _, err = job.end()
    assert code == -signal.SIGSEGV
    dumps = parse_dumps(err)
    assert {dump.trigger for dump in dumps} == {Trigger.TIMER, Trigger.SIGNAL, Trigger.FAULT}
    assert all(dump.text.count("in work") == 1 for dump in dumps)


@pytest.mark.parametrize("ending", ["sys.exit(7)", "faulthandler.cancel_dump_traceback_later(); os._exit(7)"])
def test_a_forked_child_ends_as_it_would_without_a_block(tmp_path: Path, ending: str) -> None:
    """A pending timer of faulthandler would have it wait for ever."""
    code, out, err = run(
        f"""
with diagnostic.diagnose(config()):
    pid = os.fork()
    if not pid:
        {ending}
    output(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert (code, out, err) == (0, "7 True\n", "")


def test_forks_do_not_put_off_the_parents_timer(tmp_path: Path) -> None:
    job = Job(
        """
is_over = threading.Event()
def wait():
    input()
    is_over.set()
threading.Thread(target=wait).start()
start = time.monotonic()
with diagnostic.diagnose(config(0.5)):
    while not is_over.wait(0.02):
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
output(time.monotonic() - start)
""",
        tmp_path / "d",
    )
    job.wait_for_stderr("Timeout (", 3)
    job.go_on()
    _, out, err = job.end()
    assert 3 <= err.count("Timeout (") <= float(out) / 0.5


def test_a_fork_while_another_thread_enters_its_first_block_leaves_the_child_able_to_enter_one(tmp_path: Path) -> None:
    code, out, err = run(
        """
class SlowImport:
    def find_spec(self, name, path=None, target=None):
        if name == "cloud_tpu_diagnostics._config":
            started.set()
            time.sleep(0.5)

def enter():
    with diagnostic.diagnose(config()):
        pass

without_companion()
started = threading.Event()
sys.meta_path.insert(0, SlowImport())
thread = threading.Thread(target=enter)
thread.start()
started.wait()
pid = os.fork()
if not pid:
    signal.alarm(20)
    enter()
    os._exit(0)
output(os.waitpid(pid, 0)[1])
thread.join()
""",
        tmp_path,
    )
    assert (code, out.split()) == (0, ["0"]), err


def test_a_fork_in_another_thread_leaves_the_child_no_held_lock(tmp_path: Path) -> None:
    code, out, _ = run(
        """
without_companion()
def fork():
    for _ in range(100):
        pid = os.fork()
        if not pid:
            with diagnostic.diagnose(config()):
                pass
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
thread = threading.Thread(target=fork)
thread.start()
while thread.is_alive():
    with diagnostic.diagnose(config()):
        pass
output("done")
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "done\n")


def test_a_fork_does_not_deadlock_with_a_block_that_the_collection_of_garbage_finds(tmp_path: Path) -> None:
    code, out, err = run(
        """
import gc
from cloud_tpu_diagnostics._collect import blocks
from cloud_tpu_diagnostics._collect.timer import Timer
def enter_and_lose():
    block = diagnostic.diagnose(config(0.6))
    block.__enter__()
    block.itself = block
schedule = Timer._schedule
is_arming = threading.Event()
def collect_and_schedule(self, output):  # Any allocation may start a collection, here too.
    if threading.current_thread() is not threading.main_thread():
        is_arming.set()
        time.sleep(0.05)
        gc.collect()
    return schedule(self, output)
without_companion()
gc.disable()
Timer._schedule = collect_and_schedule
enter_and_lose()
is_arming.wait()
pid = os.fork()
if not pid:
    os._exit(0)
print(os.waitpid(pid, 0)[1])
while blocks._entered:
    time.sleep(0.01)
output(blocks._current, faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "0\nNone False\n"), err


@pytest.mark.parametrize("lock", ["blocks._lock", "blocks._current._timer.lock"])
def test_a_fork_does_not_wait_for_a_stuck_thread(tmp_path: Path, lock: str) -> None:
    code, out, err = run(
        f"""
from cloud_tpu_diagnostics._collect import blocks
diagnostic._FORK_WAITS_SECONDS = 0.3
def hold():
    with {lock}:
        is_held.set()
        may_go.wait()
is_held, may_go = threading.Event(), threading.Event()
without_companion()
with diagnostic.diagnose(config()):
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    is_held.wait()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        with diagnostic.diagnose(config()):
            pass
        sys.exit(7)  # With a pending timer of faulthandler it would wait for ever.
    output(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), blocks._current._timer._output.is_in_use())
    may_go.set()
    thread.join()
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
output(faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "7 True\nFalse\n"), err


def test_a_child_writes_its_faults_and_has_a_block_and_a_file_of_its_own(tmp_path: Path) -> None:
    code, _, err = run(
        """
without_companion()
def in_child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def block():
    with diagnostic.diagnose(config(0.2, cloud=True)):
        while not any("Timeout (" in file.read_text() for file in trace_file.FOLDER.iterdir()):
            time.sleep(0.01)
        raise_signal(signal.SIGUSR1)
    assert not faulthandler.is_enabled()
    raise_signal(signal.SIGUSR1)
def leave():
    raise ValueError
with diagnostic.diagnose(config(cloud=True)):
    assert in_child(block) == 0
    assert in_child(lambda: ctypes.string_at(0)) == -11
    assert faulthandler.is_enabled()
    raise_signal(signal.SIGUSR1)
""",
        tmp_path / "d",
    )
    assert code == 0, err
    parents, childs = sorted(file.read_text() for file in (tmp_path / "d").iterdir())
    assert ("Segmentation fault" in parents) != ("Segmentation fault" in childs)
    if "Segmentation fault" in childs:
        parents, childs = childs, parents
    assert "in block" not in parents
    assert childs.count("in block") == 1 + childs.count("Timeout (") >= 2


def test_a_child_that_leaves_its_parents_block_ends_nothing(tmp_path: Path) -> None:
    job = Job(
        """
try:
    with diagnostic.diagnose(config(0.3)):
        pid = os.fork()
        if not pid:
            raise ValueError
        output(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print("the child has ended", file=sys.stderr, flush=True)
        input()
        output(faulthandler.is_enabled())
except ValueError:
    os._exit(3)
""",
        tmp_path / "d",
    )
    job.wait_for_stderr("the child has ended")
    job.wait_for_dumps()
    job.go_on()
    code, out, _ = job.end()
    assert (code, out.split()) == (0, ["3", "True"])


@pytest.mark.timing  # Where Python is late by half a second, C writes one dump more.
def test_a_second_block_off_the_main_thread_has_the_signal_too(tmp_path: Path) -> None:
    code, _, err = run(
        """
def work():
    with diagnostic.diagnose(config()):
        raise_signal(signal.SIGUSR1)
        time.sleep(0.2)
for _ in range(2):
    with diagnostic.diagnose(config()): pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
raise_signal(signal.SIGUSR1)
""",
        tmp_path / "d",
    )
    assert code == 0
    assert err.count("Current thread") == 2
