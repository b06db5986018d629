"""A command that is asked to end does so at any moment, also while Python drops the exception of the signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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
