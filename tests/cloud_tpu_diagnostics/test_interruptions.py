"""A signal's handler that raises anywhere in `diagnose` leaves nothing on."""

from __future__ import annotations

from pathlib import Path

import pytest

from .diagnosed_jobs import Job, run


@pytest.mark.parametrize("phase", ["enter", "leave"])
def test_a_keyboard_interrupt_amid_enter_or_leave_leaves_nothing_on(tmp_path: Path, phase: str) -> None:
    """At each line of ours in turn."""
    code, out, err = run(
        """
import gc
from cloud_tpu_diagnostics._collect import blocks

class Interrupting:
    def __init__(self, at):
        self.to_go = at

    def __call__(self, frame, event, argument):
        file = frame.f_code.co_filename
        return self.line if "cloud_tpu_diagnostics" in file or "ml_diagnostics_common" in file else None

    def line(self, frame, event, argument):
        if event == "line":
            self.to_go -= 1
            if not self.to_go:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line

def is_interrupted(at):
    interrupting = Interrupting(at)
    try:
        if sys.argv[2] == "enter":
            sys.settrace(interrupting)
        with diagnostic.diagnose(config()):
            sys.settrace(interrupting if sys.argv[2] == "leave" else None)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return interrupting.to_go <= 0  # Raised in a __del__, it is printed.

def what_is_on():
    held = [each for each in gc.get_referents(faulthandler) if getattr(each, "_number", 2**30) != 2**30]
    return faulthandler.is_enabled(), blocks._current, list(blocks._entered), held

with diagnostic.diagnose(config()): pass
for at in range(1, 10_000):
    interrupted = is_interrupted(at)
    assert what_is_on() == (False, None, [], []), (at, what_is_on())
    if not interrupted:
        break
assert at > 50
output("done")
""",
        tmp_path / "d",
        phase,
    )
    assert (code, out) == (0, "done\n"), err


@pytest.mark.timing  # Python 3.10 may crash if a thread starts just as the interpreter exits.
@pytest.mark.parametrize("queued", ["", "log_queue.warn_once('late', 'late')"])
def test_a_generator_that_is_never_finished_does_not_disturb_the_end_of_the_interpreter(
    tmp_path: Path, queued: str
) -> None:
    """Also if a message of this package still waits to be logged."""
    code, out, err = run(
        f"""
import builtins
from cloud_tpu_diagnostics._collect import log_queue
def generator():
    with diagnostic.diagnose(config()):
        yield
builtins.kept = generator()
next(kept)
{queued}
output("in")
""",
        tmp_path / "d",
    )
    assert (code, out, err) == (0, "in\n", "")


def test_a_block_that_nothing_refers_to_any_more_is_left(tmp_path: Path) -> None:
    _, out, _ = run(
        """
block = diagnostic.diagnose(config())
block.__enter__()
output(faulthandler.is_enabled())
del block
output(faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert out.split() == ["True", "False"]


def test_a_job_continues_if_no_file_can_be_opened(tmp_path: Path) -> None:
    code, out, err = run(
        """
import resource
os.environ["ML_DIAGNOSTICS_RAISE"] = "0"
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
with diagnostic.diagnose(config()):
    diagnostic.heartbeat(1)
    output("in")
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "in\n"), err


_NOTHING_IS_ON = """
import gc
from cloud_tpu_diagnostics._collect import blocks
held = [each for each in gc.get_referents(faulthandler) if getattr(each, "_number", 2**30) != 2**30]
assert (faulthandler.is_enabled(), blocks._current, list(blocks._entered), held) == (False, None, [], [])
output("nothing is on")
"""


def test_handlers_that_raise_at_all_times_leave_nothing_on(tmp_path: Path) -> None:
    """One that interrupts even what tidies up after another."""
    job = Job(
        """
import gc
class Raised(BaseException): pass
ended = (Raised, SystemError)  # Python 3.10 may replace an exception that a handler raises in a call of C code.
budget = raised = 0
def raising(*_):
    global budget, raised
    if budget:
        budget, raised = budget - 1, raised + 1
        raise Raised

def wait_for_the_next():  # A function: Python 3.13 does not catch what is raised at the end of a loop.
    while budget: time.sleep(0.0001)

def enter_and_leave_until_raised():
    global budget
    try:
        try:
            budget = 2
            while budget:
                with diagnostic.diagnose(config()): pass
        except ended:
            wait_for_the_next()
    except ended:
        pass

with diagnostic.diagnose(config()): pass
signal.signal(signal.SIGALRM, raising)
deadline = time.monotonic() + 60
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while raised < 600 and time.monotonic() < deadline:
    enter_and_leave_until_raised()
signal.setitimer(signal.ITIMER_REAL, 0)
with diagnostic.diagnose(config()): pass
gc.collect()  # Interrupted in `signal.getsignal`, enum of Python 3.10 leaves a cycle that refers to a block.
assert raised >= 600
"""
        + _NOTHING_IS_ON,
        tmp_path / "d",
    )
    code, out, err = job.end(timeout_seconds=90)
    assert (code, out) == (0, "nothing is on\n"), err


def test_a_handler_may_have_a_block_of_its_own_at_any_time(tmp_path: Path) -> None:
    code, out, err = run(
        """
calls = []
depth = 0
def handler(*_):
    global depth
    if depth == 3:  # A block may take longer than the timer: signals would nest without end.
        return
    depth += 1
    try:
        with diagnostic.diagnose(config()): calls.append(1)
    finally:
        depth -= 1
with diagnostic.diagnose(config()): pass
signal.signal(signal.SIGALRM, handler)
deadline = time.monotonic() + 20
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(calls) < 300 and time.monotonic() < deadline:
    with diagnostic.diagnose(config()): pass
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(calls) >= 300
"""
        + _NOTHING_IS_ON,
        tmp_path / "d",
    )
    assert (code, out) == (0, "nothing is on\n"), err


def test_blocks_at_the_limit_of_recursion_leave_nothing_on(tmp_path: Path) -> None:
    code, out, err = run(
        """
os.environ["ML_DIAGNOSTICS_RAISE"] = "0"
logging.disable(logging.CRITICAL)
def deep(frames):
    if frames:
        return deep(frames - 1)
    with diagnostic.diagnose(config()): pass

with diagnostic.diagnose(config()): pass
for frames in range(sys.getrecursionlimit() - 100, sys.getrecursionlimit()):
    try:
        deep(frames)
    except RecursionError:
        pass
with diagnostic.diagnose(config()): pass
"""
        + _NOTHING_IS_ON,
        tmp_path / "d",
    )
    assert (code, out) == (0, "nothing is on\n"), err


def test_one_object_may_be_entered_by_many_threads_at_once(tmp_path: Path) -> None:
    code, out, err = run(
        """
shared = diagnostic.diagnose(config())
def enter_and_leave():
    for _ in range(100):
        with shared: pass
threads = [threading.Thread(target=enter_and_leave) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not shared._entered
"""
        + _NOTHING_IS_ON,
        tmp_path / "d",
    )
    assert (code, out) == (0, "nothing is on\n"), err
