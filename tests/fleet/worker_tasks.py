"""A task for worker processes, in a module that is imported fast."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any


def work(task: tuple[str, str]) -> str:
    """Do as the name of a task says; a file counts its tries."""
    name, counter = task
    with Path(counter).open("a") as file:
        file.write(name[0])
    tries = Path(counter).read_text().count(name[0])
    if name == "killed" or (name == "unlucky" and tries == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "exits":
        os._exit(3)
    if name == "raises":
        raise ZeroDivisionError("a defect")
    return name.upper()


def map_group(task: Any) -> Any:
    """Map a group as the local engine does, unless it is that of a file in the mirror: then the worker is killed."""
    from ml_diagnostics_fleet import local_engine

    if task.group == Path(task.mirror, "killed").read_text():
        os.kill(os.getpid(), signal.SIGKILL)
    return local_engine._map_group(task)
