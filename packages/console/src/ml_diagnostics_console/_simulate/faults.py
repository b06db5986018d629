"""Faults that are injected from outside at a step, so that the program stays as it is: `sigkill@process=1,step=30`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.progress import ProgressReader, page_of

from ml_diagnostics_console._simulate.processes import PodProcess

__all__ = ["KINDS", "Fault", "Injector", "fault"]

_SIGNALS: Final = {
    "sigkill": signal.SIGKILL,
    "sigterm": signal.SIGTERM,
    "sigstop": getattr(signal, "SIGSTOP", None),
    "sigsegv": signal.SIGSEGV,
    "sigabrt": signal.SIGABRT,
}
_EXIT: Final = "exit"
KINDS: Final = (*_SIGNALS, _EXIT)
"""The kinds; `exit` is `os._exit(0)`."""
_FORM: Final = re.compile(r"(?P<kind>[a-z_0-9]+)@(?P<at>[a-z]+=\d{1,9}(?:,[a-z]+=\d{1,9})*)")
_SEARCH_SECONDS: Final = 0.2
"""The interval of searches for the process that reports its steps."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        kind: One of `KINDS`.
        process: The number of the pod, from 0.
        step: The step at which, or right after which, it is injected; None without one.
        seconds: How long after the start of the pod, where the program reports no steps.
    """

    kind: str
    process: int
    step: int | None
    seconds: int | None

    def __str__(self) -> str:
        at = f"step={self.step}" if self.step is not None else f"seconds={self.seconds}"
        return f"{self.kind}@process={self.process},{at}"


def fault(text: str) -> Fault:
    """Parse a fault; the type of the option `--fault`."""
    found = _FORM.fullmatch(text)
    pairs = dict(part.split("=") for part in found["at"].split(",")) if found else {}
    is_known = found is not None and found["kind"] in KINDS and set(pairs) <= {"process", "step", "seconds"}
    if found is None or not is_known or ("step" in pairs) == ("seconds" in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a fault: give one such as sigkill@process=1,step=30; kinds are {', '.join(KINDS)}; "
            "seconds=20 in place of the step counts from the start of the process"
        )
    numbers = {name: int(value) for name, value in pairs.items()}
    return Fault(found["kind"], numbers.get("process", 0), numbers.get("step"), numbers.get("seconds"))


class Injector:
    """Injects faults, each once, into the first start of their pods.

    Args:
        faults: The faults.
        folder: The folder in which the launcher of a process that may be ended by `exit` has its pipe.
    """

    def __init__(self, faults: list[Fault], folder: Path) -> None:
        self.pending = list(faults)
        self._folder = folder
        self._pages: dict[int, tuple[int, ProgressReader]] = {}
        self._steps: dict[int, int] = {}
        self._next_search = 0.0

    def check(self, running: list[PodProcess]) -> list[Fault]:
        """Inject the faults that are due, and return them."""
        injected = []
        for each in list(self.pending):
            process = next((one for one in running if one.pod.rank == each.process and not one.attempt), None)
            if process is not None and self._is_due(each, process) and self._inject(each, process):
                self.pending.remove(each)
                injected.append(each)
        return injected

    def close(self) -> None:
        """Close the pages."""
        while self._pages:
            self._pages.popitem()[1][1].close()

    def _is_due(self, each: Fault, process: PodProcess) -> bool:
        if each.seconds is not None:
            return time.monotonic() - process.started >= each.seconds
        page = self._page(process)
        if page is None or each.step is None:
            return False
        # The ring holds every state since the last read, so that no step is missed between two checks.
        steps = [state.step for state in page[1].read_new()[0] if state.step is not None]
        newest = self._steps[process.pid] = max([self._steps.get(process.pid, -1), *steps])
        return newest >= each.step

    def _page(self, process: PodProcess) -> tuple[int, ProgressReader] | None:
        """Return the process of the pod that reports its steps, and its page; None if there is none yet."""
        if process.pid not in self._pages and time.monotonic() >= self._next_search:
            self._next_search = time.monotonic() + _SEARCH_SECONDS
            for pid in process.descendants():
                with contextlib.suppress(OSError):
                    if (path := page_of(pid)) is not None:
                        self._pages[process.pid] = (pid, ProgressReader(path))
        return self._pages.get(process.pid)

    def _inject(self, each: Fault, process: PodProcess) -> bool:
        page = self._page(process)
        pid = page[0] if page is not None else process.program()
        number = _SIGNALS.get(each.kind)
        try:
            if pid is None:
                return False
            if number is not None:
                os.kill(pid, number)
                return True
            pipe = os.open(self._folder / f"exit-{pid}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        os.close(pipe)  # Its end is what the process waits for.
        return True
