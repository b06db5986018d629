"""The start of the inference in a Python program of a job; see `_startup/sitecustomize.py`.

Any Python program below the command runs this, so nothing else is imported before it imports a framework.
"""

from __future__ import annotations

import os
import time

from ml_diagnostics._inference.imports import before_import

TYPE_CHECKING = False  # Not imported from typing, which takes longer than the rest.
if TYPE_CHECKING:
    from ml_diagnostics._inference.session import Session

__all__ = ["start", "stop"]

_JOB_VARIABLE = "ML_DIAGNOSTICS_JOB"
_FRAMEWORKS = ("jax", "torch", "grain", "tensorflow", "ml_goodput_measurement")
"""With the recorder of programs that record themselves, perhaps before they import another."""

# State of the process: its inference, if it is a program of a job under `ml-diagnostics run`.
_session: Session | None = None
_is_stopped = False


def start(startup_folder: str) -> None:
    """Observe this process from its first import of a framework on, if the environment names the job.

    Args:
        startup_folder: The folder that is first on PYTHONPATH.
    """
    name, started = os.environ.get(_JOB_VARIABLE, "").strip(), time.time()

    def observe() -> None:
        global _session
        if not _is_stopped and _session is None:
            from ml_diagnostics._inference.session import Session

            _session = Session(name, started, startup_folder)

    if name:
        before_import(_FRAMEWORKS, observe)


def stop(job_name: str) -> None:
    """Observe no longer, since the program records its job itself.

    Args:
        job_name: The name under which it records.
    """
    global _is_stopped
    _is_stopped = True
    if _session is not None:
        _session.close(job_name)
