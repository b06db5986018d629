from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import timeit

import pytest
from ml_diagnostics_common.guard import LOSSES, Counters, guarded, guarded_as, report_loss, warn_once

from ..waiting import fill_pipe


@guarded
def record(value: object) -> object:
    """Records."""
    if isinstance(value, BaseException):
        raise value
    return value


@pytest.mark.usefixtures("in_production")
def test_an_error_of_ours_is_counted_logged_once_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert record(ValueError("broken\nvalue")) is None
    assert LOSSES.as_dict() == {"record: ValueError": 3}
    [message] = caplog.messages
    assert "record could not record" in message
    assert "broken" in message
    assert "job goes on" in message


def test_an_error_of_ours_is_raised_under_test() -> None:
    with pytest.raises(ValueError, match="broken"):
        record(ValueError("broken"))


@pytest.mark.usefixtures("in_production")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_meant_for_the_program_passes_untouched(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        record(error)
    assert caught.value is error


@pytest.mark.usefixtures("in_production")
def test_a_call_that_records_nothing_is_not_reported_as_a_dropped_event(caplog: pytest.LogCaptureFixture) -> None:
    @guarded_as("start its uploads")
    def start() -> None:
        raise ValueError("broken")

    start()
    assert ".start could not start its uploads (ValueError: broken)" in caplog.text
    assert "its event" not in caplog.text


def test_a_guarded_function_is_what_it_was() -> None:
    assert record(5) == 5
    assert record.__name__ == "record"
    assert record.__doc__ == "Records."


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.usefixtures("in_production")
def test_an_error_that_cannot_be_shown_is_not_a_second_error() -> None:
    report_loss("what", MuteError())
    assert LOSSES.total() == 1


@pytest.mark.usefixtures("in_production")
def test_a_log_handler_that_raises_is_not_a_second_error() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space for the log")

    handler = Broken()
    logging.getLogger("ml_diagnostics").addHandler(handler)
    try:
        record(ValueError("x"))
    finally:
        logging.getLogger("ml_diagnostics").removeHandler(handler)
    assert LOSSES.as_dict() == {"record: ValueError": 1, "log_handler_raised": 1}


def test_a_warning_is_logged_once_for_each_key(caplog: pytest.LogCaptureFixture) -> None:
    for key in ("a", "b", "a"):
        warn_once(key, "about %s", key)
    assert caplog.messages == ["about a", "about b"]


def test_counters_are_exact_under_threads() -> None:
    counters = Counters()
    threads = [threading.Thread(target=lambda: [counters.add("r") for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.as_dict() == {"r": 20_000}
    assert counters.total() == 20_000


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_can_count_while_a_thread_of_its_parent_held_the_lock() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with LOSSES._lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # Ends a child that hangs.
        LOSSES.add("in the child")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    release.set()
    thread.join()
    assert status == 0


@pytest.mark.timing
def test_the_guard_costs_less_than_a_microsecond() -> None:
    def bare() -> None: ...

    wrapped = guarded(bare)
    cost = min(timeit.repeat(wrapped, number=20_000, repeat=5)) - min(timeit.repeat(bare, number=20_000, repeat=5))
    assert cost / 20_000 < 1e-6  # 0.1 us on a quiet machine.


_WARNS = """
import logging, sys
from ml_diagnostics_common.guard import LOSSES, job_logger, warn_once
from ml_diagnostics_common.worker import start
if sys.argv[1] == "a handler":
    logging.basicConfig()
warning = lambda: warn_once(1, "There is no space for the journal.")
if sys.argv[2] == "a thread":
    start(warning, "a thread").wait(5)
else:
    warning()
job_logger("ml_diagnostics.goodput").error("There is no space for uploads.")
print(LOSSES["log_not_writable"], flush=True)
"""


@pytest.mark.parametrize("by", ["a thread", "the main thread"])
@pytest.mark.parametrize("through", ["a handler", "no handler"])
def test_a_reader_of_stderr_that_stopped_holds_up_no_job_and_no_end_of_it(through: str, by: str) -> None:
    read, write = os.pipe()
    fill_pipe(write)
    job = [sys.executable, "-c", _WARNS, through, by]
    try:
        done = subprocess.run(job, stdout=subprocess.PIPE, stderr=write, timeout=60, check=True)
    finally:
        os.close(read)
        os.close(write)
    assert done.stdout == b"2\n"
