"""The public libraries of the same names, as they are published, each in an environment of its own.

Ours and theirs have the same import name, so theirs never meets ours in one process: it is driven by a subprocess.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

GOODPUT = "reference"
DIAGNOSTICS = "reference-diagnostics"

_REPOSITORY = Path(__file__).parents[1]
_FINISHED = "finished"


class ReferenceUnavailableError(Exception):
    """The reference cannot be installed here: no network, or no package index."""


def reference_python(pins: str, timeout_seconds: float = 90.0) -> Path:
    """The Python of a reference's environment, which is made at first use and kept beside nox's own.

    Args:
        pins: What is in it: the name of a file in `requirements`.
        timeout_seconds: For making it.

    Raises:
        ReferenceUnavailableError: It is not there and cannot be made.
    """
    pinned = _REPOSITORY / "requirements" / f"{pins}.txt"
    folder = _REPOSITORY / ".nox" / pins
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    finished = folder / _FINISHED
    if not finished.exists() or finished.read_text() != pinned.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, python, pinned, timeout_seconds)
        finished.write_text(pinned.read_text())
    return python


def _make(folder: Path, python: Path, pinned: Path, timeout_seconds: float) -> None:
    uv = shutil.which("uv")
    pins = ["--require-hashes", "-r", str(pinned)]
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *pins],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins],
        ]
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_seconds)
        except subprocess.CalledProcessError as error:
            raise ReferenceUnavailableError(f"{' '.join(command)}: {error.stderr.strip()[-500:]}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ReferenceUnavailableError(f"{' '.join(command)}: {error}") from error
