"""The exit of a process is reported to each library with a hook, and the process ends as it would without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from ml_diagnostics_common import program_end

TWO = """
import atexit, os, signal, sys, threading, time
from ml_diagnostics_common.program_end import ExitHooks
from ml_diagnostics_common.program_end import preserve_interrupt

signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("first", "second"):
    ExitHooks(lambda has_failed, reason, name=name: print(name, has_failed, reason, flush=True)).install()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", TWO + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ML_DIAGNOSTICS_RAISE": "0"},
    )


@pytest.mark.parametrize(
    ("program", "code", "reported"),
    [
        ("pass", 0, "False "),
        ("sys.exit()", 0, "False "),
        ("sys.exit(3)", 3, "True sys.exit(3)"),
        ("raise ValueError('nan')", 1, "True ValueError: nan"),
        ("try: sys.exit(3)\nexcept SystemExit: pass", 0, "False "),
        ("try: sys.exit(3)\nfinally: time.sleep(0.01)", 3, "True sys.exit(3)"),
        ("try: sys.exit(3)\nexcept SystemExit: sys.exit(4)", 4, "True sys.exit(4)"),
    ],
)
def test_each_of_two_libraries_gets_the_exit_of_the_program(program: str, code: int, reported: str) -> None:
    ended = run(program)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.splitlines() == [f"second {reported}", f"first {reported}"]


def test_the_program_and_its_users_see_the_exception_of_sys_exit() -> None:
    ended = run("""
        import pickle, traceback
        try:
            sys.exit(3)
        except BaseException as error:
            print(type(error).__name__, type(error).__qualname__, type(error).__module__, repr(error), flush=True)
            print(traceback.format_exception_only(type(error), error), flush=True)
            print(type(pickle.loads(pickle.dumps(error))) is SystemExit, flush=True)
    """)
    assert ended.stdout.splitlines()[:3] == [
        "SystemExit SystemExit builtins SystemExit(3)",
        "['SystemExit: 3\\n']",
        "True",
    ]
    assert "Noted" not in ended.stdout + ended.stderr


# What resets CPython's flag: a string that is executed at exit, or by a thread.
RESETTING = [
    "atexit.register(lambda: exec('pass'))",
    "def work():\n    while True: exec('pass'); time.sleep(0.001)\nthreading.Thread(target=work, daemon=True).start()",
]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to die of")
@pytest.mark.parametrize("resetting", RESETTING)
def test_a_program_that_ctrl_c_ends_dies_of_sigint(resetting: str) -> None:
    ended = run(f"{resetting}\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)")
    assert ended.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in ended.stderr


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("try: raise KeyboardInterrupt\nexcept KeyboardInterrupt: pass", 0),
        ("try: raise KeyboardInterrupt\nexcept KeyboardInterrupt: sys.exit(7)", 7),
        ("try: raise KeyboardInterrupt\nexcept KeyboardInterrupt as error: sys.last_value = error", 0),
        # A console prints the exceptions of its statements, and goes on.
        ("import code\ncode.InteractiveInterpreter().runsource('raise KeyboardInterrupt')\nraise SystemExit(0)", 0),
    ],
)
def test_a_program_that_handles_ctrl_c_ends_as_it_decides(program: str, code: int) -> None:
    assert run(program).returncode == code


def test_hooks_that_are_uninstalled_report_nothing() -> None:
    ended = run("""
        hooks = ExitHooks(lambda *_: print("third", flush=True))
        before = sys.exit, sys.excepthook
        hooks.install()
        hooks.uninstall()
        assert (sys.exit, sys.excepthook) == before
    """)
    assert ended.stdout.splitlines() == ["second False ", "first False "], ended.stderr


def test_all_that_holds_up_the_end_shares_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_end, "_end_started", None)
    now = 1000.0
    assert program_end.exit_deadline(5.0, lambda: now) == pytest.approx(1004.5)
    now = 1003.0
    assert program_end.exit_deadline(5.0, lambda: now) == pytest.approx(1004.5)
    assert program_end.exit_deadline(10.0, lambda: now) == pytest.approx(1009.0)
    now = 1006.0
    assert now < program_end.exit_deadline(5.0, lambda: now) < now + 0.5
    now = 1100.0  # The process did not end.
    assert program_end.exit_deadline(5.0, lambda: now) == pytest.approx(1104.5)
