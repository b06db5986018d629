"""The command as a user types it: a process of its own, with its output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def typed(*arguments: str, columns: int | None = None, timeout_seconds: float = 60) -> Ended:
    """Run `xprofiler` with these arguments to its end; `columns` is the width of its terminal."""
    # On the oldest Python, Google's clients warn at each start that they will drop support for it.
    environ = {**os.environ, "PYTHONWARNINGS": "error,ignore::FutureWarning"}
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
