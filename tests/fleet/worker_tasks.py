"""A task for worker processes, in a module that is imported fast."""

from __future__ import annotations

import os
import signal
from pathlib import Path


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
