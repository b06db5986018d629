"""The command as a user types it, in a process of its own or in this one, with its output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import pytest
from xprofiler.cli import main


class Ended(NamedTuple):
    """The result of a command."""

    code: int
    output: str
    errors: str


def typed(*arguments: str, columns: int | None = None, timeout_seconds: float = 60) -> Ended:
    """Run `xprofiler` with these arguments to its end; `columns` is the width of its terminal."""
    # On the oldest Python, Google's clients warn at each start that they will drop support for it. The oldest
    # matplotlib calls pyparsing by old names.
    old_names = [f"ignore::DeprecationWarning:matplotlib.{name}" for name in ("_fontconfig_pattern", "_mathtext")]
    environ = {**os.environ, "PYTHONWARNINGS": ",".join(["error", "ignore::FutureWarning", *old_names])}
    environ.pop("COLUMNS", None)
    if columns is not None:
        environ["COLUMNS"] = str(columns)
    ended = subprocess.run(
        [sys.executable, "-m", "xprofiler", *arguments],
        env=environ,
        capture_output=True,
        timeout=timeout_seconds,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def in_this_process(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """Run `xprofiler` with these arguments in this process."""
    capsys.readouterr()
    try:
        code = main([*map(str, arguments)])
    except SystemExit as end:
        code = int(end.code or 0)
    return Ended(code, *capsys.readouterr())
