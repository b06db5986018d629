"""Environments that tests make: of the public libraries of the same names, and of what an install command brings.

Ours and theirs have the same import name, so theirs never meets ours in one process: it is driven by a subprocess.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

GOODPUT = "reference"
DIAGNOSTICS = "reference-diagnostics"
LIBTPU = "libtpu"

_REPOSITORY = Path(__file__).parents[1]
_FINISHED = "finished"
_TIMEOUT_SECONDS = 300.0


class ReferenceUnavailableError(Exception):
    """The environment cannot be made here: no network, or no package index."""


def reference_python(pins: str, timeout_seconds: float = 90.0) -> Path:
    """Return the Python of a reference's environment, which is made at first use and kept beside nox's own.

    Args:
        pins: Its contents: the name of a file in `requirements`.
        timeout_seconds: For making it.

    Raises:
        ReferenceUnavailableError: It does not exist and cannot be made.
    """
    pinned = _REPOSITORY / "requirements" / f"{pins}.txt"
    folder = _REPOSITORY / ".nox" / pins
    finished = folder / _FINISHED
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{pins}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Workers of one run may need it at the same moment; released with the file.
        if not finished.exists() or finished.read_text() != pinned.read_text():
            shutil.rmtree(folder, ignore_errors=True)
            python = _create(folder, timeout_seconds)
            _pip_install(python, ["--require-hashes", "-r", str(pinned)], timeout_seconds, compiled=True)
            finished.write_text(pinned.read_text())
    return _python_of(folder)


def make_environment(folder: Path, *installs: list[str], constraints: Path, root: Path = _REPOSITORY) -> Path:
    """Make an environment by `pip install` commands, with the versions that the tests pin, and return its Python.

    Args:
        folder: Its path, where nothing exists.
        *installs: The arguments of each `pip install`.
        constraints: A file of pins with hashes, of which only names and versions are used.
        root: The base of relative paths in the arguments.

    Raises:
        ReferenceUnavailableError: It cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    pins = folder.with_name(f"{folder.name}-constraints.txt")
    lines = constraints.read_text().splitlines()
    pins.write_text("".join(line.rstrip(" \\") + "\n" for line in lines if line[:1].isalnum()))
    python = _create(folder, _TIMEOUT_SECONDS)
    for arguments in installs:
        _pip_install(python, ["--constraint", str(pins), *arguments], _TIMEOUT_SECONDS, root=root)
    return python


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def _create(folder: Path, timeout_seconds: float) -> Path:
    uv = shutil.which("uv")
    make = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    _run([*make, str(folder)], timeout_seconds)
    return _python_of(folder)


def _pip_install(
    python: Path, arguments: list[str], timeout_seconds: float, *, compiled: bool = False, root: Path = _REPOSITORY
) -> None:
    uv = shutil.which("uv")
    if uv:
        pip = [uv, "pip", "install", "--quiet", "--python", str(python), *(["--compile-bytecode"] if compiled else [])]
    else:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *arguments], timeout_seconds, root)


def _run(command: list[str], timeout_seconds: float, folder: Path = _REPOSITORY) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_seconds, cwd=folder)
    except subprocess.CalledProcessError as error:
        raise ReferenceUnavailableError(f"{' '.join(command)}: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReferenceUnavailableError(f"{' '.join(command)}: {error}") from error
