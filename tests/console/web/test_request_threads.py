"""Requests are answered in threads that nothing waits for at the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from ml_diagnostics_console._web.request_threads import RequestThreads, in_daemon_thread

from ...waiting import LONG_SECONDS

_ENDS_DURING_A_CALL = """
import asyncio
import threading
from ml_diagnostics_console._web.request_threads import in_daemon_thread

async def main():
    call = asyncio.create_task(in_daemon_thread(threading.Event().wait))
    await asyncio.sleep(0)
    call.cancel()

asyncio.run(main())
print("ended")
"""


def test_a_result_and_an_error_arrive() -> None:
    assert asyncio.run(in_daemon_thread(lambda: 42)) == 42
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 / 0))


def test_a_limited_number_of_functions_is_called_at_a_time() -> None:
    running, most, lock = 0, 0, threading.Lock()
    gate = threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(LONG_SECONDS)  # Until two are in it: fewer would wait for ever.
        with lock:
            running -= 1

    async def main() -> None:
        threads = RequestThreads(2)
        await asyncio.gather(*(threads.call(work) for _ in range(8)))

    asyncio.run(main())
    assert most == 2


def test_a_process_ends_during_a_call() -> None:
    command = [sys.executable, "-c", _ENDS_DURING_A_CALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")
