"""Stack traces of a process that is stuck in native code, with the lock of the interpreter released, and held."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..waiting import AtOnce, wait_until
from .diagnosed_jobs import HEADER, Job, run

pytestmark = pytest.mark.timing

_RELEASED, _HELD = "CDLL", "PyDLL"
_STUCK_FRAME = "in lock_twice"

_PLACES = ("console", "file", "file, by a companion")

_INTERVALS = 6.5

_STUCK = """
library, target = sys.argv[2:]
if target == "file":
    without_companion()
with diagnostic.diagnose(config(1, cloud=target != "console")):
    lock_twice(getattr(ctypes, library)(None))
"""


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], str]]:
    """Return the output of jobs that were stuck for 6.5 s, with an interval of 1 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
        patch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path_factory.mktemp("ml-diagnostics")))
        jobs = {
            (library, target): Job(_STUCK, tmp_path_factory.mktemp("traces") / "debugging", library, target)
            for library in (_RELEASED, _HELD)
            for target in _PLACES
        }
        for job in jobs.values():
            job.wait_until_stuck()
        time.sleep(_INTERVALS)
        stderr = {key: job.kill() for key, job in jobs.items()}
        yield {key: stderr[key] if key[1] == "console" else job.trace() for key, job in jobs.items()}


@pytest.mark.parametrize("library", [_RELEASED, _HELD])
@pytest.mark.parametrize("target", _PLACES)
def test_a_hang_is_dumped_at_every_interval_with_its_frame(
    hangs: dict[tuple[str, str], str], library: str, target: str
) -> None:
    written = hangs[library, target]
    assert written.count("Timeout (") >= 0.75 * _INTERVALS
    assert written.count(_STUCK_FRAME) == written.count("Timeout (")


@pytest.mark.parametrize(
    ("library", "target"), [*((_RELEASED, target) for target in _PLACES), (_HELD, "file, by a companion")]
)
def test_each_dump_follows_its_header_if_any_thread_or_process_can_write_it(
    hangs: dict[tuple[str, str], str], library: str, target: str
) -> None:
    lines = hangs[library, target].splitlines()
    dumps = [number for number, line in enumerate(lines) if line.startswith("Timeout (")]
    assert all(lines[number - 1] == f"{HEADER} 1 seconds." for number in dumps)


_SHARES_BEFORE_A_HANG = (0.25, 0.75)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[float, str]:
    """Return what a job wrote that was stuck after that share of an interval, with the GIL held."""

    def output(share: float) -> str:
        job = Job(
            """
with diagnostic.diagnose(config(2)):
    time.sleep(2 * float(sys.argv[2]))
    lock_twice(ctypes.PyDLL(None))
""",
            tmp_path_factory.mktemp("traces") / "d",
            str(share),
        )
        job.wait_until_stuck()
        time.sleep(2 * 1.3)
        return job.kill()

    return AtOnce(output, _SHARES_BEFORE_A_HANG)


@pytest.mark.parametrize("share", _SHARES_BEFORE_A_HANG)
def test_a_hang_with_the_gil_held_has_a_dump_within_an_interval_of_any_start(
    outputs: AtOnce[float, str], share: float
) -> None:
    assert _STUCK_FRAME in outputs.result(share)


def test_python_that_is_late_by_less_than_half_a_second_writes_each_dump_itself(tmp_path: Path) -> None:
    """Its threads execute, so that faulthandler would end the program now and then: only Python writes the header."""
    code, _, err = run(
        """
end = time.monotonic() + 4.5
with diagnostic.diagnose(config(1)):
    while time.monotonic() < end:
        ctypes.PyDLL(None).usleep(200_000)
        time.sleep(0.01)
""",
        tmp_path / "d",
    )
    assert code == 0
    assert err.count(HEADER) == err.count("Timeout (") >= 2


@pytest.mark.parametrize("library", [_RELEASED, _HELD])
def test_a_signal_from_outside_dumps_a_hang_at_any_time(tmp_path: Path, library: str) -> None:
    """With the GIL held, by a process beside the job, which a block of less than a moment does not start."""
    job = Job(
        """
with diagnostic.diagnose(config()):
    wait_for_helper()
    lock_twice(getattr(ctypes, sys.argv[2])(None))
""",
        tmp_path / "d",
        library,
    )
    job.wait_until_stuck()
    assert job.process.stderr is not None
    for _ in range(2):
        job.process.send_signal(signal.SIGUSR1)
        while _STUCK_FRAME not in job.process.stderr.readline():
            assert job.process.poll() is None
    assert "Fatal" not in job.kill()


@pytest.mark.parametrize("target", ["console", "file, by a companion"])
def test_a_signal_is_answered_though_the_gil_is_taken_for_ever_as_soon_as_it_is_read(
    tmp_path: Path, target: str
) -> None:
    job = Job(
        """
from ml_diagnostics_common import signal_wakeups
signal_wakeups.subscribe(lambda data: lock_twice(ctypes.PyDLL(None)))  # Before the block's own subscription.
cloud = sys.argv[2] != "console"
with diagnostic.diagnose(config(cloud=cloud)):
    if not cloud:
        wait_for_helper()
    lock_twice(ctypes.CDLL(None))
""",
        tmp_path / "d",
        target,
    )
    job.wait_until_stuck()
    for number in (1, 2):
        job.process.send_signal(signal.SIGUSR1)
        if target == "console":
            assert job.process.stderr is not None
            for _ in range(2):  # Two threads are stuck.
                while _STUCK_FRAME not in job.process.stderr.readline():
                    assert job.process.poll() is None
        else:
            wait_until(lambda number=number: job.trace().count(_STUCK_FRAME) == 2 * number)  # type: ignore[misc]
    assert _STUCK_FRAME not in job.kill()


@pytest.mark.parametrize("library", [_RELEASED, _HELD])
def test_a_signal_from_outside_dumps_a_hang_to_the_file(tmp_path: Path, library: str) -> None:
    job = Job(
        "with diagnostic.diagnose(config(cloud=True)): lock_twice(getattr(ctypes, sys.argv[2])(None))",
        tmp_path / "d",
        library,
    )
    job.wait_until_stuck()
    for number in (1, 2):
        job.process.send_signal(signal.SIGUSR1)
        wait_until(lambda number=number: job.trace().count(_STUCK_FRAME) == number)  # type: ignore[misc]
    job.kill()


def test_above_faulthandlers_cut_of_100_threads_all_are_dumped(tmp_path: Path) -> None:
    job = Job(
        """
def crowd():
    for _ in range(150):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
without_companion()
crowd()
with diagnostic.diagnose(config(1, cloud=True)):
    lock_twice(ctypes.CDLL(None))
""",
        tmp_path / "d",
    )
    job.wait_until_stuck()
    wait_until(lambda: any(_STUCK_FRAME in file.read_text() for file in job.files()), running=job.process)
    job.kill()
    dump = job.trace().partition("Timeout (")[2]
    assert dump.count("(most recent call first)") == 151
    assert dump.count(_STUCK_FRAME) == 1


def test_leaving_does_not_wait_for_the_reader_of_stderr(tmp_path: Path) -> None:
    """With a blocking pipe, to cancel the timer would wait for ever."""
    job = Job(
        """
def deep(levels):
    if levels:
        deep(levels - 1)
    else:
        time.sleep(100)
for _ in range(50):
    threading.Thread(target=deep, args=(60,), daemon=True).start()
with diagnostic.diagnose(config(0.2)):
    time.sleep(1)
    output("filled")
output("left")
os._exit(0)
""",
        tmp_path / "d",
    )
    assert job.line() == "filled"
    assert job.line() == "left"
    assert job.end()[0] == 0


def test_a_program_with_the_default_action_of_sigpipe_is_not_ended_by_our_writes(tmp_path: Path) -> None:
    job = Job(
        """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with diagnostic.diagnose(config(0.1)):
    output("on")
    input()
    time.sleep(0.5)
output("left")
""",
        tmp_path / "d",
    )
    assert job.line() == "on"
    assert job.process.stderr is not None
    job.process.stderr.close()
    job.go_on()
    assert job.line() == "left"
    job.process.wait()
    assert job.process.returncode == 0
    assert job.process.stdout is not None
    assert job.process.stdin is not None
    job.process.stdout.close()
    job.process.stdin.close()
