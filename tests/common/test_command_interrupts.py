"""A command that is asked to end does so at any moment, also while Python drops the exception of the signal."""

from __future__ import annotations

import argparse
import errno
import signal
import subprocess
import sys

import pytest
from ml_diagnostics_common import signal_wakeups
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.program import Program

from ..waiting import LONG_SECONDS

PROGRAM = """
import argparse, os, signal, subprocess, sys, time
from ml_diagnostics_common.command.program import Program

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # The handler runs here, and its exception is dropped.

class Waits:
    name, summary = "wait", "waits for a program"

    def prepare_parser(self, parser):
        pass

    def run(self, options, console):
        Finalized()
        print("goes on", flush=True)
        try:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=50)
        except KeyboardInterrupt:
            print("cleans up", flush=True)
            raise
        return 0

sys.exit(Program("test", "Waits.", "1", lambda: [Waits()]).main(["wait"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGTERM")
def test_a_signal_that_arrives_while_an_object_is_finalized_ends_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=40, check=False)
    assert done.stdout.splitlines() == ["goes on", "cleans up"], done.stderr
    assert done.returncode == 128 + signal.SIGINT
    assert "Exception ignored" not in done.stderr


WAITS = """
import os, signal, subprocess, sys, threading
from ml_diagnostics_common.command.program import Program

class Waits:
    name, summary = "wait", "waits in the kernel"

    def prepare_parser(self, parser):
        parser.add_argument("wait")

    def run(self, options, console):
        # As if SIGTERM had arrived just before the wait: it does not end a wait of the main thread.
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        program = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
        try:
            print("waits", flush=True)
            if options.wait == "program":
                program.wait()
            elif options.wait == "event":
                threading.Event().wait()
            else:
                os.read(os.pipe()[0], 1)
        except KeyboardInterrupt:
            print("cleans up", flush=True)
            raise
        finally:
            program.kill()
        return 0

sys.exit(Program("test", "Waits.", "1", lambda: [Waits()]).main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGTERM")
@pytest.mark.parametrize("wait", ["program", "event", "pipe"])
def test_a_signal_that_arrives_just_before_a_wait_ends_the_command(wait: str) -> None:
    command = subprocess.Popen([sys.executable, "-c", WAITS, "wait", wait], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    with command.stdout as output:
        assert output.readline() == "waits\n"
        command.send_signal(signal.SIGTERM)
        try:
            assert command.wait(LONG_SECONDS) == 128 + signal.SIGINT
        finally:
            command.kill()
        assert output.read() == "cleans up\n"


def test_a_program_that_embeds_a_command_gets_its_handlers_back() -> None:
    def handle(number: int, frame: object) -> None:
        pass

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGURG") if hasattr(signal, name)]
    before = [signal.signal(number, handle) for number in numbers]
    report_unraisable = sys.unraisablehook
    try:
        assert Program("test", "Does nothing.", "1", lambda: [_DoesNothing()]).main(["nothing"]) == 0
        assert [signal.getsignal(number) for number in numbers] == [handle] * len(numbers)
        assert sys.unraisablehook is report_unraisable
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_command_runs_where_no_more_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(receive: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(signal_wakeups, "subscribe", refuse)
    before = signal.getsignal(signal.SIGTERM)
    assert Program("test", "Does nothing.", "1", lambda: [_DoesNothing()]).main(["nothing"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


class _DoesNothing:
    name, summary = "nothing", "does nothing"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, options: argparse.Namespace, console: Console) -> int:
        return 0
