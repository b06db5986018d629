"""Runs a function of this package in a process of its own, in our environment or in the reference's.

Only the standard library is imported here and at the top of every table's file, so that both can run them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
_NOT_INHERITED = (
    "PYTHONDONTWRITEBYTECODE",  # What is measured is an import, not a compilation.
    "ML_DIAGNOSTICS_",
    "CLOUDSDK_",
    "GOOGLE_",
    "GCE_METADATA_",
    "STORAGE_EMULATOR_",
)


def ours(function: Callable[..., Any], *, environment: dict[str, str] | None = None, **parameters: Any) -> Any:
    """Return the result of a function (as JSON) in a new process of this environment, in a new folder without cloud."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local", **(environment or {})}
        return _call(sys.executable, function, settings, parameters)


def reference(
    function: Callable[..., Any],
    *,
    pins: str = "reference",
    environment: dict[str, str] | None = None,
    **parameters: Any,
) -> Any:
    """Return the result of a function in a new process of a reference's environment, by default goodput's."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"TMPDIR": folder, **(environment or {})}
        return _call(str(reference_python_of(pins)), function, settings, parameters)


def in_session(name: str, function: Callable[..., Any], **parameters: Any) -> Any:
    """Return the result of a function in a new process of the environment of a nox session, with our packages."""
    python = REPOSITORY / ".nox" / name / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"{python} does not exist; `nox -s {name} --install-only` makes its environment")
    with tempfile.TemporaryDirectory() as folder:
        settings = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local"}
        return _call(str(python), function, settings, parameters)


@cache
def reference_python_of(pins: str) -> Path:
    """Return the Python of a reference's environment, by the name of its pins."""
    from tests.reference_environment import reference_python

    return reference_python(pins, timeout_seconds=600)


@contextlib.contextmanager
def server(module: str, *arguments: object) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """Run a module that serves until its stdin ends.

    Yields:
        The first line that it prints, which is JSON, and its process.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield json.loads(running.stdout.readline()), running
        finally:
            running.communicate(timeout=60)


def environment_of_a_job(settings: dict[str, str]) -> dict[str, str]:
    """Return the environment variables of a measured process: it inherits no settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)} | settings


def _call(python: str, function: Callable[..., Any], settings: dict[str, str], parameters: dict[str, Any]) -> Any:
    done = subprocess.run(
        [python, "-m", "benchmarks.process", function.__module__, function.__name__, json.dumps(parameters)],
        cwd=REPOSITORY,
        env=environment_of_a_job(settings),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{function.__module__}.{function.__name__}({parameters}) failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def resident_mib(*, peak: bool = False) -> float:
    """Resident memory of this process, or its peak since `forget_peak`."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not contain the resident memory")


def forget_peak() -> None:
    """Reset the peak of resident memory."""
    gc.collect()
    with contextlib.suppress(OSError):  # Without it the peak may be an earlier one: too high, never too low.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that is at least as large as a share of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


if __name__ == "__main__":
    # The reference prints; its output is not a result.
    results, sys.stdout = sys.stdout, sys.stderr
    module, name, arguments = sys.argv[1:]
    json.dump(getattr(importlib.import_module(module), name)(**json.loads(arguments)), results)
